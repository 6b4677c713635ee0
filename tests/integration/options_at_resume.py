"""Another value for each option of a training run, and what a run with it asks of its parts."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import annotated_types
from pydantic.fields import FieldInfo

from rlhf_config.run import RunConfig
from rlhf_config.sections import fields_of
from rlhf_config.train import SLOTS

from .first_party import installed

OTHER = {
    "actor.adam.betas": [0.5, 0.75],
    "reward.use": ["exact_match"],
    "rollout.top_k": 5,
    "rollout.stop": ["b"],
    "actor.ema": 0.5,
    "ref.path": "other",
    "algo.teacher.path": "other",
    "eval.data": ["other.jsonl"],
    "eval.temperatures": [0.5],
    "checkpoint.best_metric": "eval/rows/T0/reward",
    "rollout.max_length": 20,
    "rollout.max_new_tokens": 4,
}
"""Values that no rule of types gives, in a folder with a model and rows that are called ``other``."""


def options() -> Iterator[tuple[str, FieldInfo]]:
    """Yield the path and the field of each option that belongs to no component."""
    yield from fields_of(RunConfig)


def component_options(slot: str, name: str) -> Iterator[tuple[str, FieldInfo]]:
    """Yield the path and the field of each option of a component."""
    section = slot.rpartition(".")[0]
    (hook,) = (one.hook for one in SLOTS if one.path == slot)
    (entry,) = (entry for entry in installed(hook) if entry.name == name)
    yield from fields_of(entry.component.config, f"{section}.{name}")


def another(path: str, info: FieldInfo, now: Any) -> Any:
    """Return a value that the option may have and does not have now; None if there is none that would do."""
    if path in OTHER:
        return OTHER[path]
    for slot in SLOTS:
        if slot.path == path:
            names = [entry.name for entry in installed(slot.hook)]
            other = next((name for name in names if name not in str(now)), None)
            return [other] if slot.many and other else other
    return _of_type(info.annotation, info, now)


def _of_type(kind: Any, info: FieldInfo, now: Any) -> Any:
    origin = get_origin(kind)
    if origin in (Union, UnionType):
        found = (_of_type(one, info, now) for one in get_args(kind) if one is not NoneType)
        return next((value for value in found if value is not None), None)
    if origin is Annotated:
        return _of_type(get_args(kind)[0], info, now)
    if origin is Literal:
        return next((value for value in get_args(kind) if value != now), None)
    if kind is bool:
        return not now
    if kind is int:
        return (now or 0) + 1
    if kind is float:
        bounds = [_bound(info, "le", "lt"), _bound(info, "ge", "gt")]
        most, least = (
            default if b is None else b for b, default in zip(bounds, (2.0, 0.0), strict=True)
        )
        return next(v for v in ((most + 3 * least) / 4, (most + least) / 2) if v != now)
    return None


def _bound(info: FieldInfo, *names: str) -> float | None:
    kinds = (annotated_types.Ge, annotated_types.Gt, annotated_types.Le, annotated_types.Lt)
    found = [
        getattr(m, name)
        for m in info.metadata
        if isinstance(m, kinds)
        for name in names
        if hasattr(m, name)
    ]
    return float(found[0]) if found else None


def at(path: str, value: Any) -> dict[str, Any]:
    """Return a layer of options that has one."""
    for key in reversed(path.split(".")):
        value = {key: value}
    return value


def value_of(tree: Any, path: str) -> Any:
    for key in path.split("."):
        tree = tree.get(key) if isinstance(tree, dict) else None
    return tree


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
