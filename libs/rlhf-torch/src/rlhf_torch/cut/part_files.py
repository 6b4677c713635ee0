"""Files of training state that ranks share, one per rank, in safetensors and JSON; it is read back equal to the bit.

    state.json                          options, counters, number of files
    part-00000-of-00002.safetensors     rank 0's runs: float32 weights, average, reference, optimizer state

The files say which elements of which parameter they hold. So any number of ranks can read the files of another number
of ranks, which have cut the parameters otherwise. Weights that are not trained are not saved: they are in the model
folder.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from rlhf_core import CheckpointError

from ..ranks.ranks import Ranks
from ..training.group_options import GroupOptions, changed_options, restore_changed
from ..training.state_files import STATE, read_state, require_finite
from .fragment import Fragment
from .runs import SavedRun, part_name, read_runs, write_runs
from .whole_updates import device_of_numbers

FORMAT = 2
_MASTER, _EMA, _REFERENCE, _OPTIMIZER = "float32", "ema", "reference", "optimizer."
"""Kinds of tensors in a run. ``_OPTIMIZER`` is a prefix, which the optimizer's own key follows."""


class CutTraining(Protocol):
    """Training of a role whose state is shared by the ranks, as its files need it."""

    updates: int
    """Number of updates so far."""
    ema: list[Tensor]
    """This rank's part of the moving average, in the layout of ``masters``; empty if none is kept."""
    reference: list[Tensor]
    """This rank's part of the role's own reference, in the same layout; empty if none is kept."""
    initial_groups: GroupOptions
    """Values of the parameter groups as the run's options made them."""
    tensor_parallel: int
    """Number of ranks that share every matrix beside that."""
    shard: int
    """Index of the part of every matrix that this rank has."""

    @property
    def named(self) -> Mapping[str, nn.Parameter]:
        """The trained parameters by name."""

    @property
    def fragments(self) -> Sequence[Fragment]:
        """This rank's fragments of them."""

    @property
    def masters(self) -> Sequence[Tensor]:
        """This rank's part of the float32 weights, as vectors."""

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """The torch optimizer, whose parameters are ``masters``."""

    def publish(self) -> None:
        """Have the model compute with ``masters``; a collective call."""


def save_parts(folder: Path, training: CutTraining, ranks: Ranks) -> None:
    """Write this rank's part of the training state.

    Raises:
        CheckpointError: the optimizer keeps state that cannot be written or cut, or a weight is not finite.
    """
    masters = training.masters
    require_finite({one.name: one.of(masters[one.vector]) for one in training.fragments}, folder)
    runs = [_run_of(one, masters[one.vector], training) for one in training.fragments]
    write_runs(folder / part_name(ranks.rank, ranks.world_size), runs)
    if ranks.is_first:
        _write_state(folder, training, ranks)


def _run_of(fragment: Fragment, vector: Tensor, training: CutTraining) -> SavedRun:
    run = SavedRun(
        name=_saved_name(fragment.name, training), start=fragment.start, stop=fragment.stop
    )
    run.tensors[_MASTER] = fragment.of(vector)
    if training.ema:
        run.tensors[_EMA] = fragment.of(training.ema[fragment.vector])
    if training.reference:
        run.tensors[_REFERENCE] = fragment.of(training.reference[fragment.vector])
    for key, value in training.optimizer.state.get(vector, {}).items():
        if not isinstance(value, Tensor):
            run.plain[key] = value
        elif value.dim() == 0:
            run.tensors[_OPTIMIZER + key] = value
        elif value.shape == vector.shape:
            run.tensors[_OPTIMIZER + key] = fragment.of(value)
        else:
            raise CheckpointError(
                f"{type(training.optimizer).__name__} keeps {key} of shape {tuple(value.shape)} for "
                f"{vector.numel()} elements; state that ranks share must have one number per element, or one for all",
                code="optimizer/needs-whole-parameters",
            )
    return run


def _saved_name(name: str, training: CutTraining) -> str:
    """Return the name of a parameter in the files; ``tensor_parallel`` ranks have different shards under one name."""
    return name if training.tensor_parallel == 1 else f"{name}@{training.shard}"


def _write_state(folder: Path, training: CutTraining, ranks: Ranks) -> None:
    state = {
        "format": FORMAT,
        "parts": ranks.world_size,
        "tensor_parallel": training.tensor_parallel,
        "updates": training.updates,
        "ema": bool(training.ema),
        "reference": bool(training.reference),
        "parameters": {name: _numel(parameter) for name, parameter in training.named.items()},
        "groups": changed_options(training.optimizer, training.initial_groups),
    }
    (folder / STATE).write_text(json.dumps(state), encoding="utf-8")


def load_parts(folder: Path, training: CutTraining) -> None:
    """Restore the training state that ``save_parts`` wrote on any number of ranks.

    Raises:
        CheckpointError: a file is missing or damaged, or belongs to another model, optimizer or kind of state.
    """
    state = read_state(folder)
    _check_fits(state, training, folder)
    restore_changed(training.optimizer, state["groups"], folder)
    masters = training.masters
    wanted = {_saved_name(fragment.name, training): fragment for fragment in training.fragments}
    missing = {name: fragment.length for name, fragment in wanted.items()}
    training.optimizer.state.clear()
    for part in range(state["parts"]):
        for run in read_runs(folder / part_name(part, state["parts"]), wanted):
            fragment = wanted[run.name]
            run.copy_into(fragment, masters[fragment.vector], _MASTER)
            if training.ema and state["ema"]:
                run.copy_into(fragment, training.ema[fragment.vector], _EMA)
            # Without one the run's reference was the model at the start, as it is here.
            if training.reference and state.get("reference"):
                run.copy_into(fragment, training.reference[fragment.vector], _REFERENCE)
            _restore_optimizer(training, run, fragment, masters[fragment.vector])
            missing[run.name] -= min(fragment.stop, run.stop) - max(fragment.start, run.start)
    if lacking := [name for name, count in missing.items() if count]:
        raise CheckpointError(
            f"{folder}: the files hold only a part of {lacking[0]}; resume from another checkpoint",
            code="checkpoint/incomplete",
        )
    if training.ema and not state["ema"]:  # the average begins here
        torch._foreach_copy_(training.ema, [master.detach() for master in masters])
    training.updates = int(state["updates"])
    training.publish()


def _restore_optimizer(
    training: CutTraining, run: SavedRun, fragment: Fragment, vector: Tensor
) -> None:
    state = training.optimizer.state[vector]
    state.update(run.plain)
    for kind, tensor in run.tensors.items():
        if not kind.startswith(_OPTIMIZER):
            continue
        key = kind.removeprefix(_OPTIMIZER)
        if tensor.dim() == 0:
            state[key] = tensor.to(device_of_numbers(training.optimizer.param_groups, vector))
        else:
            if key not in state:
                state[key] = torch.zeros_like(vector, dtype=tensor.dtype, requires_grad=False)
            run.copy_into(fragment, state[key], kind)


def _check_fits(state: Mapping[str, Any], training: CutTraining, folder: Path) -> None:
    if state.get("format") != FORMAT or "parts" not in state:
        raise CheckpointError(
            f"{folder / STATE}: not written by ranks that share the state of training (deepspeed at stages 1 to 3, "
            "fsdp) in this version; resume with the backend and the zero_stage of the run that wrote it",
            code="checkpoint/other-run",
        )
    if state["tensor_parallel"] != training.tensor_parallel:
        raise CheckpointError(
            f"{folder / STATE}: {state['tensor_parallel']} ranks shared every matrix, but tensor_parallel is "
            f"{training.tensor_parallel}; resume with --backend.deepspeed.tensor_parallel {state['tensor_parallel']} "
            "on any number of ranks",
            code="checkpoint/other-run",
        )
    own = {name: _numel(parameter) for name, parameter in training.named.items()}
    if differing := sorted(own.items() ^ state["parameters"].items()):
        raise CheckpointError(
            f"{folder / STATE}: the state is of another model than this run's; the first parameter that differs is "
            f"{differing[0][0]}",
            code="checkpoint/other-run",
        )


def _numel(parameter: nn.Parameter) -> int:
    return int(getattr(parameter, "ds_numel", parameter.numel()))
