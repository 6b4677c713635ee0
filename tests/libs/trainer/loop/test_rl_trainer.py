"""One step: what is asked of whom, in which order, and what is remembered for the next step."""

import itertools
import json

import numpy as np
import pytest
from tests.deadlines import HANG_S

from rlhf_core import Component, EmptyStepsError, RolloutError
from rlhf_core.batch.metric import Metric
from rlhf_core.contracts import Trajectory, Turn
from rlhf_testing.errors import has_code
from rlhf_trainer.durable.records import replay

FILTERED = {"rollout": {"filters": ["drop_until"], "drop_until": {"until": 1}, "max_refills": 1}}
KL = {"algo": {"kl": {"mode": "loss", "estimator": "k3", "coef": 0.5}}}


def once(events):
    """Without repetitions in a row."""
    return [event for event, _ in itertools.groupby(events)]


def measured(*steps):
    """Prepare a learner that reports these metrics, one mapping a step."""
    coming = iter(steps)

    def prepare(runtime):
        learn = runtime.learner.learn

        async def reporting(request):
            runtime.learner.metrics = {name: Metric(value) for name, value in next(coming).items()}
            return await learn(request)

        runtime.learner.learn = reporting

    return prepare


def test_a_step_samples_scores_learns_and_serves_the_new_weights_in_this_order(small_run):
    small_run.steps()

    assert once(small_run.events) == [
        "runtime starts",
        "generate",
        "reward",
        "shape",
        "learn",
        "serve version 1",
        "checksum",
        "runtime closes",
    ]


def test_the_engine_gets_the_weights_of_after_the_update(small_run):
    small_run.steps(count=2)

    assert small_run.runtime.engine.sources == ["weights after 1", "weights after 2"]


def test_samples_of_a_step_carry_the_version_that_the_step_before_served(small_run):
    small_run.steps(count=3)

    versions = [set(r.batch.weight_version.tolist()) for r in small_run.runtime.learner.requests]
    assert versions == [{0}, {1}, {2}]


def test_what_learning_left_behind_is_in_the_next_request(small_run):
    _, trainer = small_run.steps(count=3)

    requests = small_run.runtime.learner.requests
    assert [request.step for request in requests] == [1, 2, 3]
    assert [request.supervised_taken for request in requests] == [0, 3, 6]
    assert [dict(request.skipped_updates) for request in requests] == [
        {},
        {"policy": 1},
        {"policy": 2},
    ]
    assert trainer.state.supervised_taken == 9


def test_the_state_after_a_step_is_all_that_a_resumed_run_needs(small_run):
    steps, trainer = small_run.steps(count=2)

    state = trainer.state
    assert (state.step, state.version, state.prompts_taken) == (2, 2, 4)
    assert state.shapers == [{"steps": 2}]
    assert state.in_flight == []
    assert len(state.lengths) == 4  # prompts that were played, two a step
    assert state.seconds == pytest.approx(sum(step.timing["step_s"] for step in steps))
    assert type(state).from_json(json.loads(json.dumps(state.to_json()))) == state


def test_while_only_the_critic_learns_the_version_stays(small_run):
    def prepare(runtime):
        runtime.learner.changes_policy = False

    _, trainer = small_run.steps(count=2, prepare=prepare)

    assert trainer.state.version == 0
    assert [event for event in small_run.events if event.startswith("serve")] == [
        "serve version 0"
    ] * 2


def test_a_step_whose_groups_are_all_dropped_changes_no_weights_and_the_next_one_learns(small_run):
    (empty, full), trainer = small_run.steps(FILTERED, count=2)

    assert empty.metrics["train/empty_batch"] == 1.0
    assert empty.metrics["filter/dropped_groups/early"] == 4.0  # two groups, drawn twice
    assert empty.samples == []
    assert "train_tokens_per_s" not in empty.timing
    assert "train/empty_batch" not in full.metrics
    assert [request.step for request in small_run.runtime.learner.requests] == [2]
    assert (trainer.state.step, trainer.state.version) == (2, 1)
    balance = replay(small_run.folder / "ledger.jsonl")
    assert balance.unsettled() == []
    assert sum(balance.dropped.values()) == 8


def test_too_many_steps_without_an_update_end_the_run_before_the_last_one_counts(small_run):
    """The state is that of the step before, as after any failure."""
    drops_all = {"rollout": FILTERED["rollout"] | {"drop_until": {"until": 99}}}
    two = {"train": {"max_empty_steps": 3}}

    with pytest.raises(
        EmptyStepsError, match=r"3 steps.*step 3", check=has_code("training/empty-steps")
    ):
        small_run.steps(drops_all | two, count=4)

    assert small_run.runtime.learner.requests == []


def test_the_last_step_of_an_epoch_learns_from_what_is_left(small_run):
    """Twelve rows in steps of five: five, five and two prompts with two samples each."""
    changes = {"rollout": {"batch_size": 5}, "train": {"steps": None, "epochs": 1}}

    steps, _ = small_run.steps(changes, count=3)

    assert [len(request.batch) for request in small_run.runtime.learner.requests] == [10, 10, 4]
    assert [step.metrics["rollout/samples"] for step in steps] == [10.0, 10.0, 4.0]


def test_a_step_after_the_data_ran_out_is_empty(small_run):
    changes = {"rollout": {"batch_size": 12}, "train": {"steps": None, "epochs": 1}}

    (_, empty), trainer = small_run.steps(changes, count=2)

    assert empty.metrics == {"train/empty_batch": 1.0}
    assert trainer.state.version == 1


def test_one_group_of_one_sample_is_a_batch(small_run):
    changes = {
        "rollout": {"batch_size": 1, "n_samples_per_prompt": 1},
        "algo": {"advantage": {"estimator": "reinforce"}},
    }

    (step,), _ = small_run.steps(changes)

    (request,) = small_run.runtime.learner.requests
    assert len(request.batch) == 1
    assert step.metrics["reward/std"] == 0.0


def test_served_weights_are_not_compared_when_the_run_says_so(small_run):
    small_run.steps({"rollout": {"check_weights": False}})

    assert "checksum" not in small_run.events


def test_other_weights_than_the_trainers_end_the_step_before_anything_is_sampled_of_them(
    small_run,
):
    def prepare(runtime):
        runtime.engine.checksum = lambda: told("other")

    async def told(digest):
        return digest

    with pytest.raises(
        RolloutError, match="version 1", check=has_code("engine/serves-other-weights")
    ):
        small_run.steps(count=2, prepare=prepare)

    assert small_run.events.count("learn") == 1
    assert small_run.events.count("generate") == 2


@pytest.mark.parametrize(
    ("event", "version"),
    [("generate", 0), ("shape", 0), ("learn", 0), ("serve version 1", 1), ("checksum", 1)],
)
def test_a_step_that_fails_is_not_counted(small_run, event, version):
    small_run.diary.fail(event, RolloutError("no more"))

    with pytest.raises(RolloutError, match="no more", check=has_code("rollout/failed")):
        small_run.steps()

    assert small_run.trainer.state.step == 0
    assert small_run.trainer.state.version == version
    assert small_run.events[-1] == "runtime closes"


def test_without_a_kl_no_coefficient_is_reported(small_run):
    (step,), _ = small_run.steps(prepare=measured({"kl/ref": 1.0}))

    assert "kl/coef" not in step.metrics


def test_an_adapted_kl_coefficient_is_reported_as_it_was_in_force_and_follows_the_step(small_run):
    """4 samples of a horizon of 8, KL twice its target, clipped to 1.2: 0.5 * (1 + 0.2 * 4 / 8) = 0.55."""
    changes = {"algo": {"kl": {**KL["algo"]["kl"], "target": 0.1, "horizon": 8}}}

    (first, second), trainer = small_run.steps(
        changes, count=2, prepare=measured({"kl/ref": 0.2}, {"kl/ref": 0.1})
    )

    assert first.metrics["kl/coef"] == 0.5
    assert second.metrics["kl/coef"] == pytest.approx(0.55)
    assert trainer.state.kl_coef == pytest.approx(0.55)  # at its target it stays
    requests = small_run.runtime.learner.requests
    assert [request.kl_coef for request in requests] == pytest.approx([0.5, 0.55])


class TwoSegments:
    """An executor whose episodes are two sequences each."""

    async def run(self, task, samples, context):
        return [
            Trajectory(
                uid=task.uid._replace(sample=sample, segment=segment),
                token_ids=np.array([4, 5, 6], np.int32),
                action_mask=np.array([False, True, True]),
                rollout_logprobs=np.zeros(2, np.float32),
                weight_version=np.zeros(2, np.int32),
                turns=(Turn(start=1, end=3),),
                is_final=segment == 1,
            )
            for sample in samples
            for segment in (0, 1)
        ]


def test_episodes_of_several_sequences_move_an_adapted_kl_coefficient_as_those_of_one(small_run):
    """4 episodes of 8 sequences, as above: 0.5 * (1 + 0.2 * 4 / 8) = 0.55."""
    small_run.with_component(
        "rlhf_rollout_executors", Component(name="cut", factory=lambda config: TwoSegments())
    )
    changes = {
        "algo": {"kl": {**KL["algo"]["kl"], "target": 0.1, "horizon": 8}},
        "rollout": {"executor": "cut"},
    }

    _, trainer = small_run.steps(changes, prepare=measured({"kl/ref": 0.2}))

    assert len(small_run.runtime.learner.requests[0].batch) == 8
    assert trainer.state.kl_coef == pytest.approx(0.55)


def test_a_fixed_kl_coefficient_stays(small_run):
    _, trainer = small_run.steps(KL, prepare=measured({"kl/ref": 9.0}))

    assert trainer.state.kl_coef == 0.5


def test_a_step_without_a_batch_leaves_adapted_coefficients_alone(small_run):
    changes = {
        "algo": {
            "kl": {**KL["algo"]["kl"], "target": 0.1, "horizon": 8},
            "loss": {"entropy_coef": 0.25, "entropy_target": 2.0},
        }
    }

    (step,), trainer = small_run.steps(FILTERED, changes)

    assert step.metrics["kl/coef"] == trainer.state.kl_coef == 0.5
    assert trainer.state.entropy_coef == 0.25


def test_an_adapted_entropy_bonus_rests_above_its_target_and_comes_back_below(small_run):
    """Steps of 0.125 from 0.25 with the target 2: entropies 1, 3 and 1 give 0.375, 0.25 (resting) and 0.375."""
    loss = {"entropy_coef": 0.25, "entropy_target": 2.0, "entropy_step": 0.125}
    entropies = [{"policy/entropy": value} for value in (1.0, 3.0, 1.0, 1.0)]

    steps, trainer = small_run.steps(
        {"algo": {"loss": loss}}, count=4, prepare=measured(*entropies)
    )

    in_force = [request.entropy_coef for request in small_run.runtime.learner.requests]
    assert in_force == [0.25, 0.375, 0.0, 0.375]
    assert [step.metrics["policy/entropy_coef"] for step in steps] == in_force
    assert (trainer.state.entropy_coef, trainer.state.entropy) == (0.5, 1.0)


def test_times_of_learning_are_the_learners_own_and_shares_are_shares(small_run):
    (step,), _ = small_run.steps()

    timing = step.timing
    (request,) = small_run.runtime.learner.requests
    assert (timing["score_s"], timing["train_s"]) == (0.25, 0.5)
    assert timing["train_tokens_per_s"] == int(request.batch.num_tokens.sum()) / 0.5
    assert 0 <= timing["engine_idle_share"] <= 1
    assert 0 <= timing["trainer_idle_share"] <= 1


def test_as_many_samples_are_kept_as_text_as_the_run_asks_for(small_run):
    (step,), _ = small_run.steps({"log": {"samples": 3}})

    assert len(step.samples) == 3
    assert step.samples[0]["prompt"].endswith("=")


def test_generation_that_runs_ahead_is_in_the_state_until_no_step_is_left(small_run):
    ahead = {"rollout": {"max_staleness": 1}}

    _, one = small_run.steps(ahead, count=1)
    _, three = small_run.steps(ahead, count=3)

    assert len(one.state.in_flight) == 2
    assert one.state.prompts_taken == 4
    assert three.state.in_flight == []
    assert three.state.prompts_taken == 6


def test_weights_change_only_when_nobody_is_generating(small_run):
    """Two groups of the next step begin with those of this one and take longer: the update waits for them."""

    def prepare(runtime):
        runtime.engine.delays_s = itertools.chain([0.0, 0.0, 0.05], itertools.repeat(0.0))

    small_run.steps({"rollout": {"max_staleness": 1}}, count=2, prepare=prepare)

    assert small_run.runtime.engine.playing == [0, 0]


def test_weights_that_are_swapped_in_flight_wait_for_nobody(small_run):
    def prepare(runtime):
        runtime.engine.delays_s = itertools.chain([0.0, 0.0, HANG_S], itertools.repeat(0.0))

    changes = {"rollout": {"max_staleness": 1, "in_flight_updates": True}}
    small_run.steps(changes, prepare=prepare)

    assert small_run.runtime.engine.playing == [1]


def test_shapers_and_filters_are_told_the_step_and_the_version_that_will_be_trained(small_run):
    _, trainer = small_run.steps(count=3)

    (named,) = trainer.session.shapers
    shaper = named.shaper
    infos = [(info.step, info.version, info.max_new_tokens) for info in shaper.infos]
    assert infos == [(1, 0, 8), (2, 1, 8), (3, 2, 8)]
