"""Every option of every component of ``rlhf train`` at resume: refused, free, or obeyed from the next step on. Those
that a run without models can have are compared, as the run's own are."""

import json
import logging
import shutil
from collections import Counter
from pathlib import Path

import pytest

from rlhf_core import ConfigError
from rlhf_core.storage.run_folder import RunFolder
from rlhf_trainer.loop.resume import find_resume_point
from rlhf_trainer.loop.training import TRAINING

from .component_options import another_of, every_component_option, merged, scene_of
from .options_at_resume import BASE, at, rewrite, value_of, with_other

CLASSES = {
    "model.vision": "bound",
    "data.source": "bound",
    "data.sampler": "bound",
    "actor.adapter": "bound",
    "critic.adapter": "bound",
    "eval.metrics": "free",
    "observers.use": "free",
    "log.to": "free",
}
"""Slot -> class of the options of its components; those of other slots are obeyed."""
NEEDS_A_SELECTION = {"actor.adapter", "critic.adapter", "env.use"}
"""Slots with components that bind options only where they are chosen."""
NOT_CHOSEN = {("env.use", "external"), ("env.use", "tools")}
"""Components that need more than their name; the rule on shares asks for none."""
COMPARED = (
    *("algo.advantage.estimator", "algo.loss.policy", "algo.terms.use", "algo.correction.kind"),
    *("actor.optim", "actor.lr_schedule", "critic.optim", "critic.lr_schedule"),
    *("reward.use", "reward.shapers", "engine.name", "backend.name"),
)
"""Slots whose components a run without models can have. Of the others, executors and environments play in turns, a
filter's past decides which prompts are left, and the runtime is the stand-in itself."""
NOT_HERE = {
    # They need a server, a model, or a user's own code.
    "reward.http",
    "reward.reward_model",
    "reward.process_reward_model",
    "reward.function",
    # It imitates given rows, which is no loss of rollouts: a term is what it can be.
    "algo.loss.sft",
    # Of an engine that generates while roles compute, whose steps have no fixed order of calls.
    "engine.embedded.overlap",
}
"""Components and options that these runs cannot have."""
UNSEEN = {
    # Of episodes with several turns.
    "algo.advantage.gigpo.gamma",
    "reward.normalize.of",
}
"""Options whose value shows in no step of this stand-in."""

ALL = list(every_component_option())
COMPARABLE = [
    one
    for one in ALL
    if one.slot.path in COMPARED and not {one.path, one.path.rpartition(".")[0]} & NOT_HERE
]


def class_of(one):
    if one.slot.path == "env.use" and one.option == "share":
        return "obeyed" if (one.slot.path, one.name) in NOT_CHOSEN else "bound"
    return CLASSES.get(one.slot.path, "obeyed")


def test_every_option_has_the_class_of_its_slot(begun, small, caplog):
    """By the rule itself: the checkpoint says that it was made with another value."""
    saved = begun.folder / "of-another" / "step-00000002"
    shutil.copytree(begun.checkpoint(), saved)
    resuming = at("resume.checkpoint", str(saved))
    found = Counter()
    for scene, options in by_scene(ALL):
        with small.configured(BASE, resuming, scene, output="anew") as (resolved, _):
            for one in options:
                tree = with_other(resolved.tree, one.path)
                rewrite(saved, lambda state, tree=tree: {**state, "config": tree})
                got = class_by_rule(resolved, one, caplog)
                assert got == class_of(one), one.path
                found[got] += 1

    assert min(found[name] for name in ("bound", "free", "obeyed")) > 10


def by_scene(options):
    """The options by what has to be chosen for the rule to see them."""
    scenes = {}
    for one in options:
        is_chosen = (one.slot.path, one.name) not in NOT_CHOSEN
        scene = one.chosen if one.slot.path in NEEDS_A_SELECTION and is_chosen else {}
        if scene and one.slot.path == "env.use":
            scene = merged(scene, at("rollout", {"executor": "multi_turn", "max_length": 48}))
        scenes.setdefault(json.dumps(scene), []).append(one)
    return [(json.loads(scene), found) for scene, found in scenes.items()]


def class_by_rule(resolved, one, caplog):
    caplog.clear()
    try:
        with caplog.at_level(logging.WARNING):
            find_resume_point(resolved, RunFolder(Path("anew")), TRAINING.resuming)
    except ConfigError as error:
        return "bound" if f"--{one.path} is " in str(error) else str(error)
    return "obeyed" if f"{one.path} 'another' -> " in caplog.text else "free"


def sampled(options):
    """Every 24th of them is quick. CI also runs the first of each component and every twelfth: a component is built
    anew from all of its options, whichever has another value."""
    components = set()
    for number, one in enumerate(options):
        is_first = (component := (one.slot.path, one.name)) not in components
        components.add(component)
        is_slow = is_first or number % 12 == 0
        rarely = pytest.mark.slow if is_slow else pytest.mark.matrix
        marks = () if number % 24 == 1 else rarely
        yield pytest.param(one, marks=marks, id=f"{one.slot.path}-{one.path}")


@pytest.mark.parametrize("one", [*sampled(COMPARABLE)])
def test_the_next_step_obeys_an_option_of_a_component(begun, small, one):
    scene, name = scene_of(one), f"{one.slot.path}-{one.path}"
    with small.configured(BASE, scene) as (resolved, _):
        value = another_of(one, value_of(resolved.tree, one.path))
    assert value is not None, f"name a second value of {one.path} in OTHER"
    resuming, layer = begun.resuming(scene), at(one.path, value)

    def asked(output, *layers):
        small(BASE, scene, *layers, output=f"{output}-{name}")
        return small.asked(f"{output}-{name}")

    expected = asked("whole", layer)

    found = asked("resumed", resuming, layer)

    assert found == expected
    assert (found != begun.asked_without_a_change(scene)) == (one.path not in UNSEEN)
