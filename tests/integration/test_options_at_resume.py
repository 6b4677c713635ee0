"""Every option at resume: a run that goes on with another value is refused, or its next step is that of a run which had
the value from there on. None is reported as changed and ignored."""

import itertools
import json
import shutil
from dataclasses import replace

import pytest
from tests.libs.trainer.loop.small_run import SmallRun, write_small_run

from rlhf_core import ConfigError
from rlhf_trainer.loop.resume import FREE
from rlhf_trainer.loop.training import BINDING

from .options_at_resume import (
    another,
    at,
    component_options,
    options,
    rewrite,
    value_of,
    with_other,
)

BASE = {
    "algo": {"kl": {"coef": 0.25, "estimator": "k3"}, "loss": {"entropy_coef": 0.125}},
    "eval": {"data": ["held_out.jsonl"]},
    "checkpoint": {"every": 1, "keep": 9, "export": False},
    "train": {"steps": 3},
}
"""On top of ``small_run.OPTIONS``: what has state, so that it could go on with the old value."""
OF_COMPONENTS = (("actor.optim", "adam"), ("algo.loss.policy", "ppo"))
DRAWS_OTHERWISE = {
    # The first step takes another number of prompts with the value than without.
    "rollout.filters",
    "rollout.oversampling",
    "rollout.max_staleness",
    "rollout.concurrency",
}
"""Options whose value in the steps before decides which prompts are left: what each does from the next step on is said
by a test of its own."""
OTHER_PARTS = {
    # Another stand-in of the same kind is what these runs can have.
    "runtime.name",
    "rollout.executor",
    # It stands for values of other options.
    "preset",
}
"""Options that name parts, which tests of their own have."""

ALL = {
    **dict(options()),
    **{path: info for slot in OF_COMPONENTS for path, info in component_options(*slot)},
}
FIRST = ("algo.kl.coef", "algo.loss.entropy_coef")
"""Options with a place in the state, from which a resumed run went on whatever they said."""
BOUND = [path for path in ALL if path.startswith(BINDING)]
FREELY = [path for path in ALL if path.startswith(FREE) and path not in BOUND]
OBEYED = [path for path in ALL if path not in (*BOUND, *FREELY, *DRAWS_OTHERWISE, *OTHER_PARTS)]
SAMPLED = [
    path if path in FIRST or number % 8 == 0 else pytest.param(path, marks=pytest.mark.slow)
    for number, path in enumerate(OBEYED)
]


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    """A run of three steps with a checkpoint of each."""
    folder = tmp_path_factory.mktemp("begun")
    write_small_run(folder)
    rows = [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()]
    answered = [json.dumps({**row, "answer": "b"}) for row in rows]
    (folder / "rows.jsonl").write_text("\n".join(answered) + "\n")
    shutil.copytree(folder / "model", folder / "other")
    for name, first in (("other", "x"), ("held_out", "y")):
        rows = [{"prompt": f"{first}{n}=", "response": f"{n}", "answer": "b"} for n in range(12)]
        (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        SmallRun(folder)(BASE)
    return folder


@pytest.fixture
def small(begun, monkeypatch):
    monkeypatch.chdir(begun)
    return SmallRun(begun)


def tree_of(small):
    with small.configured(BASE) as (resolved, _):
        return resolved.tree


def changed(small, path):
    """The option with another value, which this run can have."""
    value = another(path, ALL[path], value_of(tree_of(small), path))
    assert value is not None, f"name a second value of {path} in OTHER"
    layer = at(path, value)
    with small.configured(BASE, layer):
        return layer


def resumed(small, layer, output):
    """The first step after the second one of the run that was begun."""
    saved = small.folder / "run/checkpoints/step-00000002"
    result = small(BASE, {"resume": {"checkpoint": str(saved)}}, layer, output=output)
    return small.runtime, result


def asked(small, runtime, output):
    """All that the run asked of its parts in the third step, and what it wrote of it."""
    third = [line for line in small.lines(output=output) if line["step"] == 3 and "metrics" in line]
    request = runtime.learner.requests[-1]
    return {
        "models": repr(replace(runtime.specs[0], config={})).replace(output, "OUTPUT"),
        "coefficients": (request.kl_coef, request.entropy_coef, request.lr_factors),
        "tokens": request.batch.token_ids.tolist(),
        "rewards": {name: found.tolist() for name, found in request.batch.rewards.items()},
        "metrics": [line["metrics"] for line in third],
    }


def test_every_option_belongs_to_one_class():
    classes = (BOUND, FREELY, OBEYED, DRAWS_OTHERWISE, OTHER_PARTS)

    assert sorted(path for paths in classes for path in paths) == sorted(ALL)
    assert all(any(path.startswith(section) for path in ALL) for section in BINDING)


@pytest.mark.parametrize("path", BOUND)
def test_a_bound_option_is_refused(small, path):
    """The value of the checkpoint is another: not every option has a second one that this run could have."""
    folder = small.folder / f"bound-{path}" / "step-00000002"
    shutil.copytree(small.folder / "run/checkpoints/step-00000002", folder)
    rewrite(folder, lambda state: {**state, "config": with_other(state["config"], path)})

    with pytest.raises(ConfigError, match=f"--{path} is .* was made with 'another'"):
        small(BASE, {"resume": {"checkpoint": str(folder)}}, output=f"out-{path}")


@pytest.mark.parametrize("path", SAMPLED)
def test_the_next_step_obeys_an_option(small, path):
    layer = changed(small, path)
    whole, again = f"whole-{path}", f"resumed-{path}"
    small(BASE, layer, output=whole)
    expected = asked(small, small.runtime, whole)

    runtime, _ = resumed(small, layer, again)

    assert asked(small, runtime, again) == expected


def events_of(small, run):
    """What happens while a run is started, and the run's result."""
    before = len(small.events)
    run()
    return small.events[before:]


def generated_before_it_learns(events):
    """Number of groups that the engine was asked for before the first step learned."""
    return events[: events.index("learn")].count("generate")


def test_filters_judge_from_the_next_step_on(small):
    """All groups of the steps up to the second are kept, so that a whole run with the filter has drawn the same."""
    layer = {"rollout": {"filters": ["drop_until"], "max_refills": 0, "drop_until": {"until": 3}}}

    resumed(small, layer, "resumed-filters")

    lines = small.lines(output="resumed-filters")
    (third,) = [line["metrics"] for line in lines if line["step"] == 3 and "metrics" in line]
    assert (third["train/empty_batch"], third["filter/dropped_groups/early"]) == (1.0, 2.0)
    kept = {"rollout": {"filters": ["drop_until"]}}
    small(BASE, kept, output="whole-kept")
    expected = asked(small, small.runtime, "whole-kept")
    runtime, _ = resumed(small, kept, "resumed-kept")
    assert asked(small, runtime, "resumed-kept") == expected


def test_oversampling_draws_more_from_the_next_step_on(small):
    layer = {"rollout": {"filters": ["drop_until"], "oversampling": 2.0}}
    plain = events_of(small, lambda: resumed(small, {}, "resumed-plain"))

    more = events_of(small, lambda: resumed(small, layer, "resumed-oversampling"))

    assert generated_before_it_learns(plain) == 2
    assert generated_before_it_learns(more) == 4


def test_staleness_lets_the_next_steps_be_drawn_ahead(small):
    layer = {"rollout": {"max_staleness": 1}, "train": {"steps": 5}}

    more = events_of(small, lambda: resumed(small, layer, "resumed-staleness"))

    assert generated_before_it_learns(more) > 2
    assert small.runtime.learner.requests[-1].step == 5


def test_concurrency_bounds_the_prompts_of_the_next_step(small):
    peaks = {}
    saved = str(small.folder / "run/checkpoints/step-00000002")
    for concurrency in (1, 2):

        def watch(runtime, concurrency=concurrency):
            plain, peaks[concurrency] = runtime.engine.generate, 0

            async def generate(request):
                if not runtime.learner.requests:  # evaluations, which come later, are not bounded
                    peaks[concurrency] = max(peaks[concurrency], runtime.engine.under_way + 1)
                return await plain(request)

            runtime.engine.generate = generate
            runtime.engine.delays_s = itertools.repeat(0.01)

        layers = {"resume": {"checkpoint": saved}}, {"rollout": {"concurrency": concurrency}}
        small(BASE, *layers, output=f"resumed-concurrency-{concurrency}", prepare=watch)

    assert peaks == {1: 1, 2: 2}


@pytest.mark.parametrize(
    ("path", "hook", "name"),
    [
        ("rollout.executor", "rlhf_rollout_executors", "single_turn"),
        ("runtime.name", "rlhf_runtimes", "written_down"),
    ],
)
def test_another_part_of_the_same_kind_does_the_next_step(small, path, hook, name):
    """The part is another component that says when it is built, and does what the first one does."""
    built = []
    with small.configured(BASE) as (_, plugins):
        (entry,) = [entry for entry in plugins.registries[hook] if entry.name == name]
        plain = entry.component

    def factory(config):
        built.append("another")
        return entry.load()(config)

    small.with_component(hook, replace(plain, name="another", factory=factory))
    layer = at(path, "another")
    small(BASE, layer, output=f"whole-{path}")
    expected = asked(small, small.runtime, f"whole-{path}")

    runtime, _ = resumed(small, layer, f"resumed-{path}")

    assert built == ["another", "another"]
    assert asked(small, runtime, f"resumed-{path}") == expected


def test_a_preset_is_obeyed_as_the_options_that_it_stands_for(small):
    layer = at("preset", "cispo")
    small(BASE, layer, output="whole-preset")
    expected = asked(small, small.runtime, "whole-preset")

    runtime, _ = resumed(small, layer, "resumed-preset")

    assert asked(small, runtime, "resumed-preset") == expected
