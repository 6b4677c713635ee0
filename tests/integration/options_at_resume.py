"""Another value for each option of a training run, the options beside which it acts, and runs that are begun with these
to be resumed with that."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import annotated_types
from pydantic.fields import FieldInfo
from tests.libs.trainer.loop.small_run import write_small_run
from transformers import AutoConfig

from rlhf_config.run import RunConfig
from rlhf_config.sections import fields_of
from rlhf_config.train import SLOTS

from .first_party import installed
from .recorded_run import RecordedRun

BASE: dict[str, Any] = {
    "algo": {"kl": {"coef": 0.25, "estimator": "k3"}, "loss": {"entropy_coef": 0.125}},
    "eval": {"data": ["held_out.jsonl"]},
    "checkpoint": {"every": 1, "keep": 9, "export": False},
    "train": {"steps": 3},
}
"""On top of ``small_run.OPTIONS``: what has state, so that it could go on with the old value."""

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
    "rollout.compared_share": 1.0,
    "algo.loss.aggregation": "seq-mean-token-mean",
    "algo.loss.old_logprobs": "recompute",
    "actor.lr_schedule": "cosine",
    "actor.warmup_ratio": 1.0,
    "critic.lr_schedule": "cosine",
    "critic.warmup_ratio": 1.0,
    "critic.warmup_steps": 3,
    "supervised.batch_size": 2,
    "runtime.sleep": "always",
}
"""Values that no rule of types gives, or that would show in no step so early; the folder has a model and rows that are
called ``other``."""

_CRITIC = {"algo": {"advantage": {"estimator": "gae"}}}
_KL_IN_LOSS = {"algo": {"kl": {"mode": "loss"}}}
_TEACHER = {"algo": {"terms": {"use": ["distill"]}, "teacher": {"path": "model"}}}
_TEACHER_TOP = {
    "algo": {**_TEACHER["algo"], "terms": {"use": ["distill"], "distill": {"divergence": "top_k"}}}
}
_FALLING = {"actor": {"lr_schedule": "cosine"}}
SCENES = {
    "rollout.sample_padding": {"model": {"path": "padded"}},
    "algo.loss.old_logprobs": _KL_IN_LOSS,
    "algo.loss.mask_truncated": {"rollout": {"max_new_tokens": 4}},
    "algo.kl.tail": _KL_IN_LOSS,
    "algo.kl.unbiased_gradient": _KL_IN_LOSS,
    "algo.teacher.path": _TEACHER,
    "algo.teacher.top_k": _TEACHER_TOP,
    "actor.min_lr_ratio": _FALLING,
    "actor.init_lr_ratio": {"actor": {"warmup_ratio": 1.0}},
    "ref.sync_alpha": {"ref": {"sync_every": 1}},
    "critic": _CRITIC,
    "critic.init_lr_ratio": {**_CRITIC, "critic": {"warmup_ratio": 1.0}},
    "critic.min_lr_ratio": {**_CRITIC, "critic": {"lr_schedule": "cosine"}},
    "critic.warmup_steps": {**_CRITIC, "train": {"steps": 4}},
    "supervised.batch_size": {
        "algo": {"terms": {"use": ["sft"]}},
        "supervised": {"data": ["held_out.jsonl"]},
    },
    "train.steps": _FALLING,
    "train.epochs": {**_FALLING, "train": {"steps": None}},
}
"""Option, or section -> the options with which it acts, of the run that is begun and of those that go on."""


def scene_of(path: str) -> dict[str, Any]:
    """Return the options with which another value of an option shows in a step."""
    found = [section for section in SCENES if path == section or path.startswith(section + ".")]
    return SCENES[max(found, key=len)] if found else {}


def options() -> Iterator[tuple[str, FieldInfo]]:
    """Yield the path and the field of each option that belongs to no component."""
    yield from fields_of(RunConfig)


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


class BegunRuns:
    """Runs of three steps with a checkpoint of each, one for each choice of options, in the current directory."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._checkpoints: dict[str, Path] = {}
        self._asked: dict[str, dict[str, Any]] = {}
        _write_files(folder)

    def checkpoint(self, scene: Mapping[str, Any] | None = None) -> Path:
        """Return the checkpoint of the second step of the run with these options on top of ``BASE``."""
        key = json.dumps(scene or {}, sort_keys=True)
        if key not in self._checkpoints:
            output = f"begun-{len(self._checkpoints)}"
            RecordedRun(self.folder)(BASE, scene or {}, output=output)
            self._checkpoints[key] = self.folder / output / "checkpoints" / "step-00000002"
        return self._checkpoints[key]

    def resuming(self, scene: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return the layer of options that continues from it."""
        return at("resume.checkpoint", str(self.checkpoint(scene)))

    def asked_without_a_change(self, scene: Mapping[str, Any]) -> dict[str, Any]:
        """Return what the third step asks in a run that continues from it with the same options."""
        key = json.dumps(scene, sort_keys=True)
        if key not in self._asked:
            run, output = RecordedRun(self.folder), f"unchanged-{len(self._asked)}"
            run(BASE, scene, self.resuming(scene), output=output)
            self._asked[key] = run.asked(output)
        return self._asked[key]


def _write_files(folder: Path) -> None:
    """Write the models ``model``, ``other`` and ``padded``, which has rows without a token, and rows with answers."""
    write_small_run(folder)
    rows = [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()]
    _write_rows(folder / "rows.jsonl", [{**row, "answer": "b"} for row in rows])
    for name, first in (("other", "x"), ("held_out", "y")):
        rows = [{"prompt": f"{first}{n}=", "response": f"{n}", "answer": "b"} for n in range(12)]
        _write_rows(folder / f"{name}.jsonl", rows)
    for name in ("other", "padded"):
        shutil.copytree(folder / "model", folder / name)
    config = AutoConfig.from_pretrained(folder / "padded")
    config.vocab_size += 28
    config.save_pretrained(folder / "padded")


def _write_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("\n".join(map(json.dumps, rows)) + "\n")
