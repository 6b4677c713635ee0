"""Checks of presets (``contracts.Preset``)."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ValidationError

from rlhf_config import leaves
from rlhf_config.layers import lookup
from rlhf_config.presets import PRESET
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
    """Every option of the file is one of ``rlhf train`` or of an installed component, and none names a preset."""
    known = _known_options(load())
    unknown = [path for path, _ in leaves(subject.make().options()) if path not in known]
    assert not unknown, f"no such options: {', '.join(unknown)}"
    assert PRESET not in subject.make().options(), "it names a preset itself; write its options out"


def check_every_value_fits(subject: Subject) -> None:
    """Every value has the type and is in the range of its option, and no option is of a component that the file leaves
    unselected where it selects another one."""
    plugins, values = load(), copy.deepcopy(dict(subject.make().options()))
    wrong: list[str] = []
    for slot in TRAIN.selectors:
        table, named = lookup(values, slot.section), lookup(values, slot.path)
        for entry in plugins.registries[slot.hook] if isinstance(table, dict) else ():
            given = table.pop(entry.name, None)
            if not isinstance(given, dict):
                continue
            path = f"{slot.section}.{entry.name}"
            chosen = [SelectorEntry.of(slot, name).name for name in _names(named)]
            if chosen and not any(entry.is_called(name) for name in chosen):
                wrong.append(f"{path}: {slot.path} is {', '.join(chosen)}, so it has no effect")
            own = dict(given)
            if (shared := TRAIN.shared.get(slot.path)) is not None:
                of_all = {name: own.pop(name) for name in given if name in shared.model_fields}
                wrong += _problems(shared, of_all, path)
            wrong += _problems(entry.component.config, own, path)
    wrong += _problems(TRAIN.model, values, "")
    assert not wrong, "; ".join(wrong)


def _names(named: object) -> list[str]:
    names = named if isinstance(named, list) else [named]
    return [name for name in names if isinstance(name, str) and name not in ("auto", "none")]


def _problems(model: type[BaseModel], values: Mapping[str, Any], section: str) -> list[str]:
    """Return what is wrong with values; options that the user gives, such as the model, may be missing."""
    try:
        model.model_validate(values)
    except ValidationError as error:
        return [
            f"{'.'.join(map(str, [section, *one['loc']])).strip('.')}: {one['msg']}, got {one['input']!r}"
            for one in error.errors()
            if one["type"] not in ("missing", "extra_forbidden") and one["loc"]
        ]
    return []


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
