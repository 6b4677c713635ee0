"""Training state of a role in a folder: safetensors and JSON, equal to the bit when read back."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from rlhf_core import CheckpointError
from rlhf_core.outside.json_reader import parse_object

from ..models.role_model import RoleModel
from .group_options import changed_options, restore_changed
from .updater import Updater

MODEL = "model"
MASTERS = "float32_copies"
EMA = "ema"
REFERENCE = "reference"
OPTIMIZER = "optimizer"
STATE = "state.json"
FORMAT = 2
SEPARATOR = "::"
"""Between a parameter's name and a key of its optimizer state."""


def require_finite(weights: Mapping[str, Tensor], folder: Path) -> None:
    """Raise if trained weights that are about to be saved are useless, so that the checkpoints before stay the newest.

    Raises:
        CheckpointError: a weight is NaN or infinite.
    """
    for name, tensor in weights.items():
        if tensor.numel() and not all(map(math.isfinite, torch.aminmax(tensor.detach()))):
            bad = tensor.numel() - int(tensor.isfinite().sum())
            raise CheckpointError(
                f"{bad} of the {tensor.numel()} weights {name} of the {folder.name} are NaN or infinite, and no "
                "checkpoint is written of them. Continue from the newest one, made before they were, with a smaller "
                "learning rate",
                code="checkpoint/not-finite",
            )


def save_state(folder: Path, model: RoleModel, updater: Updater | None) -> None:
    """Write the weights and, for a trained role, everything that its updates depend on.

    Raises:
        CheckpointError: the optimizer keeps something that is no tensor or plain value, or ``require_finite``.
    """
    if updater is not None:
        require_finite(updater.masters, folder)
    folder.mkdir(parents=True, exist_ok=True)
    _write(folder, MODEL, _untied(model.state()))
    state: dict[str, Any] = {"format": FORMAT, "trained": updater is not None}
    if updater is not None:
        if updater.copied:
            _write(folder, MASTERS, updater.masters)
        if updater.ema:
            _write(folder, EMA, updater.ema)
        if updater.reference:
            _write(folder, REFERENCE, _named_reference(updater))
        tensors, scalars = _split_optimizer_state(updater)
        _write(folder, OPTIMIZER, tensors)
        state |= {
            "updates": updater.updates,
            "on_host": sorted(
                name for name, tensor in tensors.items() if tensor.device.type == "cpu"
            ),
            "scalars": scalars,
            "groups": changed_options(updater.optimizer, updater.initial_groups),
        }
    try:
        text = json.dumps(state, allow_nan=False)
    except (TypeError, ValueError) as error:
        kind = type(updater.optimizer).__name__ if updater is not None else "role"
        raise CheckpointError(
            f"the {kind} keeps state that JSON cannot hold ({error}); an optimizer may keep tensors, finite numbers, "
            "strings, booleans, and lists of them",
            code="checkpoint/not-json",
        ) from error
    (folder / STATE).write_text(text, encoding="utf-8")


def load_state(folder: Path, model: RoleModel, updater: Updater | None) -> None:
    """Read the state that ``save_state`` wrote into ``model`` and ``updater``.

    Raises:
        CheckpointError: a file is missing or damaged, or belongs to another model or optimizer.
    """
    state = read_state(folder)
    if state.get("format") != FORMAT or state.get("trained") != (updater is not None):
        raise CheckpointError(
            f"{folder / STATE}: expected format {FORMAT}, trained = {updater is not None}; found format "
            f"{state.get('format')}, trained = {state.get('trained')}. It belongs to another role or version.",
            code="checkpoint/other-role",
        )
    _copy_into(_untied(model.state()), _read(folder, MODEL), folder / MODEL)
    if updater is None:
        return
    if updater.copied:
        _copy_into(updater.masters, _read(folder, MASTERS), folder / MASTERS)
    if updater.ema and (folder / f"{EMA}.safetensors").exists():
        _copy_into(updater.ema, _read(folder, EMA), folder / EMA)
    elif updater.ema:  # of a run that had no average: it begins here
        _copy_into(updater.ema, updater.masters, folder)
    # Without the file the run kept none, so its reference was the model at the start, as it is here.
    if updater.reference and (folder / f"{REFERENCE}.safetensors").exists():
        _copy_into(_named_reference(updater), _read(folder, REFERENCE), folder / REFERENCE)
    _restore_optimizer(updater, _read(folder, OPTIMIZER), state, folder)
    updater.updates = int(state["updates"])


def _named_reference(updater: Updater) -> dict[str, Tensor]:
    return dict(zip(updater.masters, updater.reference, strict=True))


def _split_optimizer_state(updater: Updater) -> tuple[dict[str, Tensor], dict[str, dict[str, Any]]]:
    tensors: dict[str, Tensor] = {}
    scalars: dict[str, dict[str, Any]] = {}
    for name, master in updater.masters.items():
        for key, value in updater.optimizer.state.get(master, {}).items():
            if isinstance(value, Tensor):
                tensors[f"{name}{SEPARATOR}{key}"] = value
            else:
                scalars.setdefault(name, {})[key] = value
    return tensors, scalars


def _restore_optimizer(
    updater: Updater, tensors: Mapping[str, Tensor], state: Mapping[str, Any], folder: Path
) -> None:
    optimizer, on_host = updater.optimizer, set(state["on_host"])
    restore_changed(optimizer, state["groups"], folder)
    restored: dict[str, dict[str, Any]] = {name: {} for name in updater.masters}
    for full_name, tensor in tensors.items():
        name, _, key = full_name.rpartition(SEPARATOR)
        if name not in restored:
            raise CheckpointError(
                f"{folder}: optimizer state for {name}, which this run does not train; resume with the model and "
                "adapter of the run that was saved",
                code="checkpoint/other-run",
            )
        device = torch.device("cpu") if full_name in on_host else updater.masters[name].device
        restored[name][key] = tensor.to(device)
    for name, values in state["scalars"].items():
        restored[name].update(values)
    optimizer.state.clear()
    for name, values in restored.items():
        if values:
            optimizer.state[updater.masters[name]] = values


def _untied(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return each tensor once, tied weights under the first of their names."""
    seen: set[tuple[int, tuple[int, ...]]] = set()
    kept: dict[str, Tensor] = {}
    for name, tensor in state.items():
        key = (tensor.data_ptr(), tuple(tensor.shape))
        if key not in seen or not tensor.numel():
            kept[name] = tensor
        seen.add(key)
    return kept


def _write(folder: Path, name: str, tensors: Mapping[str, Tensor]) -> None:
    # The clone drops views: safetensors refuses tensors that share memory.
    plain = {key: tensor.detach().contiguous().clone() for key, tensor in tensors.items()}
    save_file(plain, folder / f"{name}.safetensors")


def _read(folder: Path, name: str) -> dict[str, Tensor]:
    path = folder / f"{name}.safetensors"
    try:
        tensors: dict[str, Tensor] = load_file(path)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(
            f"{path}: cannot be read: {error}", code="checkpoint/unreadable"
        ) from error
    return tensors


def read_state(folder: Path) -> dict[str, Any]:
    """Return the numbers of a role's training state, which the file ``STATE`` of its folder has.

    Raises:
        CheckpointError: the file cannot be read.
    """
    try:
        return parse_object((folder / STATE).read_bytes())
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"{folder / STATE}: cannot be read: {error}", code="checkpoint/unreadable"
        ) from error


@torch.no_grad()
def _copy_into(target: Mapping[str, Tensor], source: Mapping[str, Tensor], path: Path) -> None:
    if differing := sorted(target.keys() ^ source.keys()):
        raise CheckpointError(
            f"{path}.safetensors: it holds other tensors than this run's model; the first is {differing[0]}. "
            "Resume with the model and adapter of the run that was saved.",
            code="checkpoint/other-tensors",
        )
    for name, tensor in target.items():
        if tensor.shape != source[name].shape or tensor.dtype != source[name].dtype:
            raise CheckpointError(
                f"{path}.safetensors: {name} is {source[name].dtype} {tuple(source[name].shape)}; this run's model has "
                f"{tensor.dtype} {tuple(tensor.shape)}",
                code="checkpoint/other-tensors",
            )
        tensor.copy_(source[name])
