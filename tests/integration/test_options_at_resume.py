"""Every option at resume: a run that goes on with another value is refused, or its next step is that of a run which had
the value from there on, and not that of a run without it. None is reported as changed and ignored."""

import shutil
from dataclasses import replace

import pytest

from rlhf_core import ConfigError
from rlhf_testing.errors import has_code
from rlhf_trainer.loop.resume import FREE
from rlhf_trainer.loop.training import BINDING

from .options_at_resume import (
    BASE,
    another,
    at,
    options,
    rewrite,
    scene_of,
    value_of,
    with_other,
)
from .test_options_from_the_next_step_on import FROM_THERE_ON

OTHER_PARTS = {
    # Another stand-in of the same kind is what these runs can have.
    "runtime.name",
    "rollout.executor",
    # It stands for values of other options.
    "preset",
}
"""Options that name parts, which tests of their own have."""
UNSEEN = {
    # Of images that environments draw; the folder for them is made anew at each start.
    "rollout.drawn_images_gib",
}
"""Options whose value shows in no step of this stand-in."""

ALL = dict(options())
FIRST = ("algo.kl.coef", "algo.loss.entropy_coef")
"""Options with a place in the state, from which a resumed run went on whatever they said."""
BOUND = [path for path in ALL if path.startswith(BINDING)]
FREELY = [path for path in ALL if path.startswith(FREE) and path not in BOUND]
OBEYED = [path for path in ALL if path not in (*BOUND, *FREELY, *FROM_THERE_ON, *OTHER_PARTS)]
SAMPLED = [
    # Every eighth is quick, and every other one is tested in CI: all of them are read by the same lines.
    path
    if path in FIRST or number % 8 == 0
    else pytest.param(path, marks=pytest.mark.slow if number % 2 else pytest.mark.matrix)
    for number, path in enumerate(OBEYED)
]


def asked(small, output, *layers):
    """What a run asks of its parts in its third step."""
    small(BASE, *layers, output=output)
    return small.asked(output)


def changed(small, path, scene):
    """The option with another value, which this run can have."""
    with small.configured(BASE, scene) as (resolved, _):
        value = another(path, ALL[path], value_of(resolved.tree, path))
    assert value is not None, f"name a second value of {path} in OTHER"
    return at(path, value)


def test_every_option_belongs_to_one_class():
    classes = (BOUND, FREELY, OBEYED, FROM_THERE_ON, OTHER_PARTS)

    assert sorted(path for paths in classes for path in paths) == sorted(ALL)
    assert set(OBEYED) >= UNSEEN
    assert all(any(path.startswith(section) for path in ALL) for section in BINDING)


@pytest.mark.parametrize("path", BOUND)
def test_a_bound_option_is_refused(begun, small, path):
    """The value of the checkpoint is another: not every option has a second one that this run could have."""
    folder = small.folder / f"bound-{path}" / "step-00000002"
    shutil.copytree(begun.checkpoint(), folder)
    rewrite(folder, lambda state: {**state, "config": with_other(state["config"], path)})

    with pytest.raises(
        ConfigError,
        match=f"--{path} is .* was made with 'another'",
        check=has_code("resume/option-changed"),
    ):
        small(BASE, at("resume.checkpoint", str(folder)), output=f"out-{path}")


@pytest.mark.parametrize("path", SAMPLED)
def test_the_next_step_obeys_an_option(begun, small, path):
    scene = scene_of(path)
    layer = changed(small, path, scene)
    expected = asked(small, f"whole-{path}", scene, layer)

    found = asked(small, f"resumed-{path}", scene, begun.resuming(scene), layer)

    assert found == expected
    assert (found != begun.asked_without_a_change(scene)) == (path not in UNSEEN)


@pytest.mark.parametrize(
    ("path", "hook", "name"),
    [
        ("rollout.executor", "rlhf_rollout_executors", "single_turn"),
        ("runtime.name", "rlhf_runtimes", "written_down"),
    ],
)
def test_another_part_of_the_same_kind_does_the_next_step(begun, small, path, hook, name):
    """The part is another component that says when it is built, and does what the first one does."""
    built = []
    with small.configured(BASE) as (_, plugins):
        (entry,) = [entry for entry in plugins.registries[hook] if entry.name == name]
        plain = entry.component

    def factory(config):
        built.append("another")
        return entry.load()(config)

    resuming = begun.resuming()
    small.with_component(hook, replace(plain, name="another", factory=factory))
    expected = asked(small, f"whole-{path}", at(path, "another"))

    found = asked(small, f"resumed-{path}", resuming, at(path, "another"))

    assert built == ["another", "another"]
    assert found == expected


def test_a_preset_is_obeyed_as_the_options_that_it_stands_for(begun, small):
    layer = at("preset", "reinforce_baseline")
    plain = asked(small, "resumed-without", begun.resuming())
    expected = asked(small, "whole-preset", layer)

    found = asked(small, "resumed-preset", begun.resuming(), layer)

    assert found == expected != plain
