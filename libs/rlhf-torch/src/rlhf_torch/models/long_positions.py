"""The check that the rotary embeddings of a short sequence do not change when a long sequence is in its row.

A probe of a few tokens never reaches the lengths at which that happens. But rotary embeddings only read positions, so
two tokens at the last positions of a long sequence act like all of it. The probe has two such tokens for each length
that the config names.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from rlhf_core import PluginError

from ..packed.rope import PerSequenceRope

NAMES_OF_LENGTHS = ("position", "window", "chunk_size")
"""Parts of the names under which configs give lengths."""
LONGEST = 2**23
"""float32 holds every position below 2^24."""
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 0.02, torch.float16: 0.002}
"""Largest difference of cosines and sines that is taken for rounding; other frequencies differ by the order of 1."""


def lengths_named(config: Any) -> list[int]:
    """Return two lengths for each length L that a config names: L + 1, where something may switch, and 2 L, where
    something that grows from L on has grown."""
    named = {
        number for name, number in _numbers(config.to_dict()) if number > 0 and _is_length(name)
    }
    beyond = {length for number in named for length in (number + 1, 2 * number)}
    return sorted(length for length in beyond if 2 <= length <= LONGEST)


def _is_length(name: str) -> bool:
    return any(part in name for part in NAMES_OF_LENGTHS) and not name.startswith("num")


def _numbers(options: dict[Any, Any]) -> Iterator[tuple[str, int]]:
    for name, value in options.items():
        if isinstance(value, dict):
            yield from _numbers(value)
        elif isinstance(value, int) and not isinstance(value, bool):
            yield str(name), value


class RotaryTables:
    """The cosines and sines that the rotary modules of a model return."""

    def __init__(self, model: nn.Module) -> None:
        wrapped = {id(m.rotary) for m in model.modules() if isinstance(m, PerSequenceRope)}
        self._modules = {
            name: module
            for name, module in model.named_modules()
            if _is_rotary(module) and id(module) not in wrapped
        }

    def __bool__(self) -> bool:
        return bool(self._modules)

    @contextmanager
    def recorded(self) -> Iterator[list[tuple[str, Tensor]]]:
        """Yield a list to which every call of a rotary module adds the module's name and its tables."""
        tables: list[tuple[str, Tensor]] = []

        def hook(name: str) -> Any:
            def add(module: nn.Module, arguments: Any, output: Any) -> None:
                parts = output if isinstance(output, tuple) else (output,)
                tables.extend((name, part) for part in parts if isinstance(part, Tensor))

            return add

        handles = [m.register_forward_hook(hook(name)) for name, m in self._modules.items()]
        try:
            yield tables
        finally:
            for handle in handles:
                handle.remove()


def _is_rotary(module: nn.Module) -> bool:
    return isinstance(module, PerSequenceRope) or any(
        "inv_freq" in name for name, _ in module.named_buffers(recurse=False)
    )


def compare_tables(
    alone: list[tuple[str, Tensor]], packed: list[tuple[str, Tensor]], num_tokens: int, family: str
) -> None:
    """Compare the tables of a row's first sequence, of ``num_tokens`` tokens, with those that it gets alone.

    Raises:
        PluginError: the tables, or their number, differ.
    """
    if len(alone) != len(packed):
        raise PluginError(
            f"{family}: its rotary embeddings are computed {len(packed)} times for a packed row and {len(alone)} times "
            "for one sequence; the torch backend cannot tell whether they agree. Choose another model.",
            code="model/rope-changes",
        )
    for (name, expected), (_, actual) in zip(alone, packed, strict=True):
        if expected.dim() < 2:
            continue
        expected, actual = (part[..., :num_tokens, :] for part in (expected, actual))
        difference = float((actual - expected).abs().max())
        if not difference <= TOLERANCE.get(expected.dtype, 1e-4):
            raise PluginError(
                f"{family}: {name} rotates a short sequence differently (by {difference:.2g}) when a longer one is in "
                "its row: its frequencies depend on the length in a way that the torch backend does not know, and it "
                "would be trained wrongly. Choose another model.",
                code="model/rope-of-row",
            )
