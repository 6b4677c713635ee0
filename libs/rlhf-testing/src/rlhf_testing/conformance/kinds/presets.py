"""Checks of presets (``contracts.Preset``)."""

from __future__ import annotations

import re

from rlhf_config import leaves
from rlhf_config.layers import lookup
from rlhf_config.sections import options_of
from rlhf_config.selection import SelectorEntry
from rlhf_config.train import TRAIN
from rlhf_core.plugins import Plugins, load

from ..subject import Subject, checks_in

_ASSIGNMENT = re.compile(r"[\w.\-\"']+\s*=")


def _known_options(plugins: Plugins) -> set[str]:
    """Return the paths of all options of ``rlhf train``, with those of every installed component."""
    known = set(options_of(TRAIN.model))
    for slot in TRAIN.selectors:
        for entry in plugins.registries[slot.hook]:
            models = [entry.component.config, *filter(None, [TRAIN.shared.get(slot.path)])]
            for model in models:
                known.update(options_of(model, f"{slot.section}.{entry.name}"))
    return known


def check_every_option_exists(subject: Subject) -> None:
    """Every option of the file is one of ``rlhf train`` or of an installed component."""
    known = _known_options(load())
    unknown = [path for path, _ in leaves(subject.make().options()) if path not in known]
    assert not unknown, f"no such options: {', '.join(unknown)}"


def check_every_component_is_installed(subject: Subject) -> None:
    """Every component that the file selects is of an installed plugin."""
    plugins, values = load(), subject.make().options()
    for slot in TRAIN.selectors:
        named = lookup(values, slot.path)
        for name in named if isinstance(named, list) else [named]:
            if isinstance(name, str) and name not in ("auto", "none"):
                plugins.get(slot.hook, SelectorEntry.of(slot, name).name)


def check_every_value_has_a_source(subject: Subject) -> None:
    """Every value has a comment in its line, which says where the method's paper has it."""
    bare = [
        line
        for line in subject.make().text().splitlines()
        if _ASSIGNMENT.match(line.lstrip()) and "#" not in line
    ]
    assert not bare, f"without a comment: {'; '.join(bare)}"


def check_the_machine_is_left_to_the_user(subject: Subject) -> None:
    """No model, data, run folder, engine, backend or runtime is named: a preset is a method, wherever it runs."""
    sections = ("model", "data", "eval", "output", "engine", "backend", "runtime", "log", "resume")
    named = [path for path, _ in leaves(subject.make().options()) if path.startswith(sections)]
    assert not named, f"left to the user: {', '.join(named)}"


CHECKS = checks_in(__name__)
