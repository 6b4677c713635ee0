"""Distances between the policy's weights of two runs, from checkpoints of every step.

Norms are Euclidean, over everything that a role's checkpoint has as weights (of an adapter, its own), in float64.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from rlhf_core import ConfigError
from rlhf_core.lazy import torch

_STATE_OF_UPDATES = ("optimizer", "ema", "reference", "float32_copies")
"""Beginnings of the names of files that hold no weights of the policy."""
_KIND, _WEIGHTS = "::", "float32"
"""Between name and kind of a tensor in the parts that several ranks write, and the kind that is weights. Averages and
the optimizer's state stand in the same files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moves:
    """Updates of one step in the original and in the changed run, and how far apart the runs are behind it."""

    original: float
    """Norm of the original's update, ``||w_t - w_(t-1)||``."""
    changed: float
    """Norm of the changed run's update."""
    cosine: float
    """Cosine of the two updates; NaN where one of them is 0."""
    distance: float
    """``||w'_t - w_t||``."""
    relative: float
    """``distance / ||w_t - w_start||``, with the weights before the span; NaN where the original has not moved."""


def moves(*, start: Path, before: tuple[Path, Path], after: tuple[Path, Path]) -> Moves:
    """Return the moves of a step, from checkpoints.

    Args:
        start: checkpoint before the span.
        before: checkpoints of the original and of the changed run before the step.
        after: those behind it.

    Raises:
        ConfigError: the checkpoints do not hold the same weights.
    """
    first, second, product, apart, moved = 0.0, 0.0, 0.0, 0.0, 0.0
    for start_w, old, old_changed, new, new_changed in _together(start, *before, *after):
        update, changed = new - old, new_changed - old_changed
        first += float(update.square().sum())
        second += float(changed.square().sum())
        product += float((update * changed).sum())
        apart += float((new_changed - new).square().sum())
        moved += float((new - start_w).square().sum())
    return Moves(
        original=math.sqrt(first),
        changed=math.sqrt(second),
        cosine=_ratio(product, math.sqrt(first) * math.sqrt(second)),
        distance=math.sqrt(apart),
        relative=_ratio(math.sqrt(apart), math.sqrt(moved)),
    )


class _Weights(Protocol):
    """The part of an open file of safetensors that is used here."""

    def keys(self) -> Iterable[str]: ...

    def get_tensor(self, name: str) -> torch.Tensor: ...


def _ratio(above: float, below: float) -> float:
    return above / below if below else math.nan


def _together(*checkpoints: Path) -> Iterator[list[torch.Tensor]]:
    """Yield each weight as it is in all checkpoints, one at a time."""
    from safetensors import safe_open

    names = _files(checkpoints[0])
    for name in names:
        opened: list[_Weights] = [safe_open(path / "policy" / name, "pt") for path in checkpoints]
        keys = [sorted(file.keys()) for file in opened]
        if any(each != keys[0] for each in keys):
            raise ConfigError(
                f"{checkpoints[-1]}: expected the weights of {checkpoints[0]}; {name} has others. With the changed "
                "options the policy has other parameters, which cannot be compared.",
                code="lab/other-weights",
            )
        for key in filter(_is_weight, keys[0]):
            yield [file.get_tensor(key).double() for file in opened]


def _is_weight(key: str) -> bool:
    return key.partition(_KIND)[2] in ("", _WEIGHTS)


def _files(checkpoint: Path) -> list[str]:
    """Return the names of the files with weights."""
    found = sorted((checkpoint / "policy").glob("*.safetensors"))
    names = [path.name for path in found if not path.name.startswith(_STATE_OF_UPDATES)]
    if not names:
        raise ConfigError(
            f"{checkpoint / 'policy'}: expected weights in *.safetensors; this backend writes none, so that "
            "replays with changed options cannot be compared. Without changed options they can.",
            code="lab/no-weights",
        )
    return names
