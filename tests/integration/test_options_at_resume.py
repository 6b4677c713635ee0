"""Every option at resume: a run that goes on with another value is refused, or its next step is that of a run which had
the value from there on. None is reported as changed and ignored."""

import hashlib
import json
import shutil
from dataclasses import replace

import pytest
from tests.libs.trainer.loop.small_run import SmallRun, write_small_run

from rlhf_core import ConfigError
from rlhf_trainer.loop.resume import FREE
from rlhf_trainer.loop.training import BINDING

from .options_at_resume import another, at, component_options, options, value_of

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
"""Options whose value in the steps before decides which prompts are left."""
OTHER_PARTS = {
    # These runs have stand-ins for models, which no other runtime holds.
    "runtime.name",
    # The others play environments and agents, of which these runs have none.
    "rollout.executor",
    # Its values are those of other options, each of which is compared.
    "preset",
}
"""Options with no second value that these runs could have."""

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


def rewrite(folder, change):
    """Change what a checkpoint's state.json says, and its digest in the manifest."""
    file, manifest = folder / "state.json", folder / "manifest.json"
    file.write_text(json.dumps(change(json.loads(file.read_text()))))
    listed = json.loads(manifest.read_text())
    listed["files"]["state.json"] = hashlib.sha256(file.read_bytes()).hexdigest()
    manifest.write_text(json.dumps(listed))


def with_other(tree, path):
    key, _, below = path.partition(".")
    return {**tree, key: with_other(tree.get(key, {}), below) if below else "another"}


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
