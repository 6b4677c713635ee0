"""Options whose value in the steps before decides where a run is, so that no whole run is at the same place: what each
does from the resumed run's next step on."""

import itertools

import pytest

from rlhf_core.errors import EmptyStepsError, NonFiniteError, RolloutError
from rlhf_core.math import adapted_entropy_coef, adapted_kl_coef
from rlhf_testing.errors import has_code

from .options_at_resume import BASE, at
from .recorded_run import ENTROPY

FROM_THERE_ON = {
    "rollout.filters",
    "rollout.max_refills",
    "rollout.oversampling",
    "rollout.max_staleness",
    "rollout.in_flight_updates",
    "rollout.concurrency",
    "rollout.max_mismatch",
    "algo.kl.target",
    "algo.kl.horizon",
    "algo.loss.entropy_target",
    "algo.loss.entropy_step",
    "supervised.batch_size",
    "train.max_skipped_updates",
    "train.max_empty_steps",
}
"""Options with a test here: each decides how many prompts or rows are taken, adapts what is in the state, counts, or
ends a run."""
FILTERS = {"rollout": {"filters": ["drop_until"], "max_refills": 0}}
"""A filter that keeps all."""


@pytest.fixture
def resumed(begun, small):
    """Goes on from the second step of the run with the options of a scene, with some more."""

    def run(output, *layers, scene=None, **more):
        small(BASE, scene or {}, begun.resuming(scene), *layers, output=output, **more)

    return run


def groups_before_it_learns(small):
    """Number of groups that the engine was asked for before the newest run's first step learned."""
    names = [name for name, _ in small.diary.calls]
    start = len(names) - 1 - names[::-1].index("runtime starts")
    return names[start : names.index("learn", start)].count("generate")


def test_filters_judge_from_the_next_step_on(small, resumed):
    dropping = {"rollout": {"drop_until": {"until": 3}}}

    resumed("filters", FILTERS, dropping)

    third = small.metrics("filters")
    assert (third["train/empty_batch"], third["filter/dropped_groups/early"]) == (1.0, 2.0)
    small(BASE, FILTERS, output="whole-kept")
    expected = small.asked("whole-kept")
    resumed("kept", FILTERS)
    assert small.asked("kept") == expected


@pytest.mark.parametrize("refills", [0, 1, 2])
def test_what_the_next_step_drops_is_replaced_as_often_as_the_option_says(small, resumed, refills):
    dropping = {"rollout": {"max_refills": refills, "drop_until": {"until": 3}}}

    resumed(f"refills-{refills}", dropping, scene=FILTERS)

    assert small.metrics(f"refills-{refills}")["filter/dropped_groups/early"] == 2 * (1 + refills)


def test_oversampling_draws_more_from_the_next_step_on(small, resumed):
    resumed("plain")
    assert groups_before_it_learns(small) == 2

    resumed("oversampling", {"rollout": {"filters": ["drop_until"], "oversampling": 2.0}})

    assert groups_before_it_learns(small) == 4


def test_staleness_lets_the_next_steps_be_drawn_ahead(small, resumed):
    resumed("staleness", {"rollout": {"max_staleness": 1}, "train": {"steps": 5}})

    assert groups_before_it_learns(small) > 2
    assert small.metrics("staleness", step=5)


@pytest.mark.parametrize("in_flight", [False, True])
def test_groups_are_under_way_at_the_next_update_if_the_option_lets_them(small, resumed, in_flight):
    def slowly(runtime):
        # Each group takes longer than the one before, so that some are played while a step learns.
        runtime.engine.delays_s = itertools.count(0.02, 0.02)

    ahead = {"rollout": {"max_staleness": 1, "concurrency": 4}, "train": {"steps": 5}}
    layer = at("rollout.in_flight_updates", in_flight)

    resumed(f"in-flight-{in_flight}", layer, scene=ahead, prepare=slowly)

    # The first weights are those of the checkpoint, when nothing plays yet.
    assert any(small.runtime.engine.playing[1:]) == in_flight


def test_concurrency_bounds_the_prompts_of_the_next_step(small, resumed):
    peaks = {}
    for concurrency in (1, 2):

        def watch(runtime, concurrency=concurrency):
            plain, peaks[concurrency] = runtime.engine.generate, 0

            async def generate(request):
                if runtime.role.updates == 2:  # evaluations, which come later, are not bounded
                    peaks[concurrency] = max(peaks[concurrency], runtime.engine.under_way + 1)
                return await plain(request)

            runtime.engine.generate = generate
            runtime.engine.delays_s = itertools.repeat(0.01)

        resumed(f"concurrency-{concurrency}", at("rollout.concurrency", concurrency), prepare=watch)

    assert peaks == {1: 1, 2: 2}


def test_the_next_step_ends_a_run_whose_models_disagree_by_more_than_the_option_says(resumed):
    """Engine and policy differ by some units of 2^-10, which the checkpoint's own bound of 0.2 lets pass."""
    with pytest.raises(
        RolloutError, match=r"rollout\.max_mismatch", check=has_code("engine/logprobs-differ")
    ):
        resumed("mismatch", at("rollout.max_mismatch", 2.0**-20))


@pytest.mark.parametrize(("limit", "ends"), [(3, True), (4, False)])
def test_skipped_updates_before_count_against_the_option(begun, small, resumed, limit, ends):
    """The two steps before skipped theirs, by the state of the checkpoint."""
    scene, skipping = at("train.max_skipped_updates", 9), lambda runtime: skip(runtime)
    if not (begun.folder / "skipped").exists():
        small(BASE, scene, output="skipped", prepare=skipping)
    saved = begun.folder / "skipped/checkpoints/step-00000002"
    layers = at("resume.checkpoint", str(saved)), at("train.max_skipped_updates", limit)

    def go_on():
        small(BASE, *layers, output=f"skipping-{limit}", prepare=skipping)

    if not ends:
        return go_on()
    with pytest.raises(
        NonFiniteError,
        match="3 updates of the policy in a row",
        check=has_code("training/gradient-not-finite"),
    ):
        go_on()


def skip(runtime):
    runtime.skips = True


@pytest.mark.parametrize(("limit", "ends"), [(3, True), (4, False)])
def test_empty_steps_before_count_against_the_option(small, resumed, limit, ends):
    scene = {"rollout": {**FILTERS["rollout"], "drop_until": {"until": 3}}}
    layer = at("train.max_empty_steps", limit)

    if not ends:
        return resumed(f"empty-{limit}", layer, scene=scene)
    with pytest.raises(
        EmptyStepsError, match=r"3 steps.*step 3", check=has_code("training/empty-steps")
    ):
        resumed(f"empty-{limit}", layer, scene=scene)


def test_the_next_step_imitates_as_many_rows_as_the_option_says(small, resumed):
    """All 12 rows in each step of the checkpoint's run."""
    scene = {"algo": {"terms": {"use": ["sft"]}}, "supervised": {"data": ["held_out.jsonl"]}}

    taken = {}
    for size in (12, 5):
        resumed(f"rows-{size}", at("supervised.batch_size", size), scene=scene)
        (update,) = [each for name, each in small.diary.step(3) if name == "policy.train_step"]
        taken[size] = update[-1]["supervised_normalizers"]["num_sequences"]

    assert taken == {12: 12, 5: 5}


STEPS = at("train.steps", 4)


@pytest.mark.parametrize(
    ("target", "horizon", "scene"),
    [
        (0.001, 10_000, {}),
        (0.001, 8, at("algo.kl.target", 0.001)),
        (1.0, 8, at("algo.kl.target", 0.001)),
    ],
)
def test_the_kl_coefficient_adapts_by_the_options_from_the_next_step_on(
    small, resumed, target, horizon, scene
):
    output = f"kl-{target}-{horizon}"

    resumed(output, {"algo": {"kl": {"target": target, "horizon": horizon}}}, STEPS, scene=scene)

    third, fourth = (small.metrics(output, step=step) for step in (3, 4))
    assert fourth["kl/coef"] != third["kl/coef"]
    assert fourth["kl/coef"] == adapted_kl_coef(
        third["kl/coef"], third["kl/ref"], target=target, num_samples=4, horizon=horizon
    )


@pytest.mark.parametrize(
    ("target", "step", "scene"),
    [
        (2 * ENTROPY, 0.03125, {}),
        (2 * ENTROPY, 0.0625, at("algo.loss.entropy_target", 2 * ENTROPY)),
        (4 * ENTROPY, 0.0625, at("algo.loss.entropy_target", 2 * ENTROPY)),
    ],
)
def test_the_entropy_bonus_adapts_by_the_options_from_the_next_step_on(
    small, resumed, target, step, scene
):
    output = f"entropy-{target}-{step}"
    layer = {"algo": {"loss": {"entropy_target": target, "entropy_step": step}}}

    resumed(output, layer, STEPS, scene=scene)

    third, fourth = (small.metrics(output, step=number)["policy/entropy_coef"] for number in (3, 4))
    assert fourth != third
    assert fourth == adapted_entropy_coef(third, ENTROPY, target=target, step=step)


def test_an_entropy_above_the_option_rests_the_bonus_from_the_step_after(small, resumed):
    resumed("resting", at("algo.loss.entropy_target", ENTROPY / 2), STEPS)

    coefs = [small.metrics("resting", step=step)["policy/entropy_coef"] for step in (3, 4)]
    assert coefs == [0.125, 0.0]
