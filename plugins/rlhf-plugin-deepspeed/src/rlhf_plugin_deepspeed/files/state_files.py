"""Files of a role's training state, one per rank, in safetensors and JSON; state is read back equal to the bit.

    state.json                          options, counters, number of files
    part-00000-of-00002.safetensors     rank 0's runs: float32 weights, moving average, optimizer state

The files say which elements of which parameter they hold. So any number of ranks at any of the stages 1 to 3 can read
the files of another number of ranks at another of these stages. Weights that are not trained are not saved: the model
folder has them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rlhf_core import CheckpointError
from rlhf_core.outside.json_reader import parse_object
from rlhf_torch.models.role_model import RoleModel
from rlhf_torch.training.group_options import changed_options, restore_changed
from rlhf_torch.training.state_files import load_state, save_state

from ..parallel.ranks import Ranks
from ..zero.fragments import Fragment
from ..zero.replicated_training import ReplicatedTraining
from ..zero.whole_updates import device_of_numbers
from ..zero.zero_training import ZeroTraining
from .runs import SavedRun, part_name, read_runs, write_runs

FORMAT = 2
STATE = "state.json"
MASTER, EMA, OPTIMIZER = "float32", "ema", "optimizer."
"""Kinds of tensors in a run. ``OPTIMIZER`` is a prefix, which the optimizer's own key follows."""


def save_training(
    folder: Path, training: ZeroTraining | ReplicatedTraining | None, role: RoleModel, ranks: Ranks
) -> None:
    """Write this rank's part of the training state; return once all ranks have written their parts.

    At stage 0 the first rank writes the files of the torch backend. A role that is not trained writes nothing.

    Raises:
        CheckpointError: the optimizer keeps state that cannot be written or cut.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if isinstance(training, ZeroTraining):
        write_runs(folder / part_name(ranks.rank, ranks.world_size), _runs_of(training))
        if ranks.is_first:
            _write_state(folder, training, ranks)
    elif isinstance(training, ReplicatedTraining) and ranks.is_first:
        save_state(folder, role, training.updater)
    ranks.wait()


def load_training(
    folder: Path, training: ZeroTraining | ReplicatedTraining | None, role: RoleModel, ranks: Ranks
) -> None:
    """Restore the training state that ``save_training`` wrote; return once all ranks have.

    Raises:
        CheckpointError: a file is missing or damaged, belongs to another model or optimizer, or was written at stage 0
            and is read at stages 1 to 3, or the other way round.
    """
    if isinstance(training, ZeroTraining):
        _load_parts(folder, training)
    elif isinstance(training, ReplicatedTraining):
        load_state(folder, role, training.updater)
    ranks.wait()


def _runs_of(training: ZeroTraining) -> list[SavedRun]:
    masters = training.masters
    return [
        _run_of(fragment, masters[fragment.vector], training) for fragment in training.fragments
    ]


def _run_of(fragment: Fragment, vector: Tensor, training: ZeroTraining) -> SavedRun:
    run = SavedRun(
        name=_saved_name(fragment.name, training), start=fragment.start, stop=fragment.stop
    )
    run.tensors[MASTER] = fragment.of(vector)
    if training.ema:
        run.tensors[EMA] = fragment.of(training.ema[fragment.vector])
    for key, value in training.optimizer.state.get(vector, {}).items():
        if not isinstance(value, Tensor):
            run.plain[key] = value
        elif value.dim() == 0:
            run.tensors[OPTIMIZER + key] = value
        elif value.shape == vector.shape:
            run.tensors[OPTIMIZER + key] = fragment.of(value)
        else:
            raise CheckpointError(
                f"{type(training.optimizer).__name__} keeps {key} of shape {tuple(value.shape)} for "
                f"{vector.numel()} elements; state that ranks share must have one number per element, or one for all"
            )
    return run


def _saved_name(name: str, training: ZeroTraining) -> str:
    """Return the name of a parameter in the files; ``tensor_parallel`` ranks have different shards under one name."""
    return name if training.tensor_parallel == 1 else f"{name}@{training.shard}"


def _write_state(folder: Path, training: ZeroTraining, ranks: Ranks) -> None:
    state = {
        "format": FORMAT,
        "parts": ranks.world_size,
        "tensor_parallel": training.tensor_parallel,
        "updates": training.updates,
        "ema": bool(training.ema),
        "parameters": {name: _numel(parameter) for name, parameter in training.named.items()},
        "groups": changed_options(training.optimizer, training.initial_groups),
    }
    (folder / STATE).write_text(json.dumps(state), encoding="utf-8")


def _load_parts(folder: Path, training: ZeroTraining) -> None:
    state = _read_state(folder)
    _check_fits(state, training, folder)
    restore_changed(training.optimizer, state["groups"], folder)
    masters = training.masters
    wanted = {_saved_name(fragment.name, training): fragment for fragment in training.fragments}
    missing = {name: fragment.length for name, fragment in wanted.items()}
    training.optimizer.state.clear()
    for part in range(state["parts"]):
        for run in read_runs(folder / part_name(part, state["parts"]), wanted):
            fragment = wanted[run.name]
            run.copy_into(fragment, masters[fragment.vector], MASTER)
            if training.ema and state["ema"]:
                run.copy_into(fragment, training.ema[fragment.vector], EMA)
            _restore_optimizer(training, run, fragment, masters[fragment.vector])
            missing[run.name] -= min(fragment.stop, run.stop) - max(fragment.start, run.start)
    if lacking := [name for name, count in missing.items() if count]:
        raise CheckpointError(
            f"{folder}: the files hold only a part of {lacking[0]}; resume from another checkpoint"
        )
    if training.ema and not state["ema"]:  # the average begins here
        torch._foreach_copy_(training.ema, [master.detach() for master in masters])
    training.updates = int(state["updates"])
    training.publish()


def _restore_optimizer(
    training: ZeroTraining, run: SavedRun, fragment: Fragment, vector: Tensor
) -> None:
    state = training.optimizer.state[vector]
    state.update(run.plain)
    for kind, tensor in run.tensors.items():
        if not kind.startswith(OPTIMIZER):
            continue
        key = kind.removeprefix(OPTIMIZER)
        if tensor.dim() == 0:
            state[key] = tensor.to(device_of_numbers(training.optimizer.param_groups, vector))
        else:
            if key not in state:
                state[key] = torch.zeros_like(vector, dtype=tensor.dtype, requires_grad=False)
            run.copy_into(fragment, state[key], kind)


def _read_state(folder: Path) -> dict[str, Any]:
    try:
        return parse_object((folder / STATE).read_bytes())
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{folder / STATE}: cannot be read: {error}") from error


def _check_fits(state: Mapping[str, Any], training: ZeroTraining, folder: Path) -> None:
    if state.get("format") != FORMAT or "parts" not in state:
        raise CheckpointError(
            f"{folder / STATE}: not written by ZeRO stage 1, 2 or 3 of this version; resume with the zero_stage and "
            "the backend of the run that wrote it"
        )
    if state["tensor_parallel"] != training.tensor_parallel:
        raise CheckpointError(
            f"{folder / STATE}: {state['tensor_parallel']} ranks shared every matrix, but tensor_parallel is "
            f"{training.tensor_parallel}; resume with --backend.deepspeed.tensor_parallel {state['tensor_parallel']} "
            "on any number of ranks"
        )
    own = {name: _numel(parameter) for name, parameter in training.named.items()}
    if differing := sorted(own.items() ^ state["parameters"].items()):
        raise CheckpointError(
            f"{folder / STATE}: the state is of another model than this run's; the first parameter that differs is "
            f"{differing[0][0]}"
        )


def _numel(parameter: nn.Parameter) -> int:
    return int(getattr(parameter, "ds_numel", parameter.numel()))
