"""Files of runs: each rank writes the runs of parameter elements that it holds; ranks cut otherwise can read them.

A *run* is a range of consecutive elements of a flattened parameter, with all the tensors that are kept for them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from rlhf_core import CheckpointError
from rlhf_core.outside.json_reader import parse_object
from rlhf_torch.cut.fragment import Fragment

SEPARATOR = "::"
HEADER = "runs"


@dataclass(slots=True, kw_only=True)
class SavedRun:
    """Elements ``start`` to ``stop`` of one flattened parameter, with weights, average and optimizer state."""

    name: str
    start: int
    stop: int
    tensors: dict[str, Tensor] = field(default_factory=dict)
    """Tensors by kind, each (stop - start,), or () for one number that holds for all elements."""
    plain: dict[str, Any] = field(default_factory=dict)
    """Optimizer state other than tensors, by key; JSON values."""

    @torch.no_grad()
    def copy_into(self, fragment: Fragment, vector: Tensor, kind: str) -> None:
        """Copy the elements that the run and the fragment share into the fragment's place in ``vector``."""
        start, stop = max(fragment.start, self.start), min(fragment.stop, self.stop)
        target = fragment.of(vector)[start - fragment.start : stop - fragment.start]
        target.copy_(self.tensors[kind][start - self.start : stop - self.start])


def part_name(rank: int, parts: int) -> str:
    """Return the name of the file of one rank of ``parts`` ranks."""
    return f"part-{rank:05d}-of-{parts:05d}.safetensors"


def write_runs(path: Path, runs: list[SavedRun]) -> None:
    """Write the runs of one rank into one safetensors file.

    Raises:
        CheckpointError: JSON cannot hold a plain value of a run.
    """
    header = {run.name: [run.start, run.stop, run.plain] for run in runs}
    try:
        text = json.dumps(header, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise CheckpointError(
            f"the optimizer keeps state that JSON cannot hold ({error}); it may keep tensors, finite numbers, strings, "
            "booleans, and lists of them",
            code="checkpoint/not-json",
        ) from error
    # The clone drops views: safetensors refuses tensors that share memory.
    tensors = {
        f"{run.name}{SEPARATOR}{kind}": tensor.detach().cpu().contiguous().clone()
        for run in runs
        for kind, tensor in run.tensors.items()
    }
    save_file(tensors, path, {HEADER: text})


def read_runs(path: Path, wanted: Mapping[str, Fragment]) -> Iterator[SavedRun]:
    """Yield the runs of a file that overlap the wanted fragment of the same name.

    Raises:
        CheckpointError: the file is missing or damaged.
    """
    try:
        with safe_open(path, framework="pt") as file:
            header = parse_object((file.metadata() or {})[HEADER])
            kinds: dict[str, list[str]] = {}
            for full in file.keys():  # noqa: SIM118 -- safe_open's file is no mapping
                name, _, kind = full.rpartition(SEPARATOR)
                kinds.setdefault(name, []).append(kind)
            for name, (start, stop, plain) in header.items():
                fragment = wanted.get(name)
                if fragment is None or stop <= fragment.start or start >= fragment.stop:
                    continue
                tensors = {k: file.get_tensor(f"{name}{SEPARATOR}{k}") for k in kinds[name]}
                yield SavedRun(name=name, start=start, stop=stop, tensors=tensors, plain=plain)
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise CheckpointError(
            f"{path}: cannot be read: {error}", code="checkpoint/unreadable"
        ) from error
