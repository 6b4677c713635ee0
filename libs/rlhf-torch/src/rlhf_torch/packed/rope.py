"""Rotary embeddings whose frequencies depend on the sequence's length: each sequence of a row gets its own.

With "dynamic" (NTK) and "longrope" Transformers takes the largest position of a forward pass for the length of every
sequence in it. In a packed row that is the length of the longest sequence, and with "dynamic" the frequencies of a long
row stay in force for the shorter rows after it. So the tokens of a row are rotated in parts, one part for each length,
and each part from the same state of the module.

A token of such a sequence is thus rotated by a length that only later tokens decide. No engine can sample that way, so
engines take such a model only up to the length at which its frequencies change.

Axes beyond the project's table: ``D_head`` size of a head.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from rlhf_core import ConfigError, PluginError

from .attention import Layout

log = logging.getLogger(__name__)


class PerSequenceRope(nn.Module):
    """Cosines and sines of a row, as Transformers' own module computes them for each sequence alone.

    Args:
        rotary: a module of Transformers whose frequencies depend on the length.
        limit: the largest length up to which the frequencies are constant, in tokens.
    """

    def __init__(self, rotary: nn.Module, limit: int) -> None:
        super().__init__()
        self.rotary = rotary
        self.limit = limit
        self.lengths: Tensor | None = None
        """(N,) on the host: the length of the sequence that each token belongs to, at least ``limit``. None: the row is
        one sequence from its first token on."""

    def forward(
        self, x: Tensor, position_ids: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, ...]:
        """Return cosines and sines (..., N, D_head) for positions (..., N)."""

        def rotated(positions: Tensor) -> tuple[Tensor, ...]:
            # A call with one token resets frequencies that an earlier, longer row has changed.
            self.rotary(x, torch.zeros_like(positions[..., :1]), *args, **kwargs)
            tables: tuple[Tensor, ...] = self.rotary(x, positions, *args, **kwargs)
            return tables

        if self.lengths is None:
            return rotated(position_ids)
        parts, order = [], []
        for length in self.lengths.unique().tolist():
            tokens = (self.lengths == length).nonzero()[:, 0].to(position_ids.device)
            # The row may lack the last token of a sequence, and engines pad prompts with tokens behind their end.
            positions = position_ids.index_select(-1, tokens).clamp(max=length - 1)
            last = torch.full_like(positions[..., :1], length - 1)
            tables = rotated(torch.cat([positions, last], dim=-1))
            parts.append([table[..., :-1, :] for table in tables])
            order.append(tokens)
        back = torch.cat(order).argsort()
        return tuple(
            torch.cat(tables, dim=-2).index_select(-2, back) for tables in zip(*parts, strict=True)
        )


class PerSequenceRopes:
    """The rotary modules of a model whose frequencies depend on the length; most models have none."""

    def __init__(self, model: nn.Module) -> None:
        _replace(model)
        self._ropes = [m for m in model.modules() if isinstance(m, PerSequenceRope)]
        self._has_refused = False
        self.limit: int | None = min((rope.limit for rope in self._ropes), default=None)
        """The largest length up to which no frequency depends on the length; None if none ever does."""

    def are_alike(self, lengths: Iterable[int]) -> bool:
        """Return whether sequences of these lengths get the same frequencies at the same positions."""
        return self.limit is None or int(max(lengths, default=0)) <= self.limit

    def let_share(self, lengths: Iterable[int]) -> bool:
        """Return whether sequences of these lengths may share what they begin with; the first refusal is logged."""
        may = self.are_alike(lengths)
        if not may and not self._has_refused:
            self._has_refused = True
            log.info(
                "share_prompts: sequences of more than %s tokens are rotated by their length, so micro-batches with "
                "such sequences compute beginnings for each of them",
                self.limit,
            )
        return may

    @contextmanager
    def of(self, layout: Layout) -> Iterator[None]:
        """Return a context in which rows are rotated by the lengths of the sequences in ``layout``."""
        try:
            for rope in self._ropes:
                rope.lengths = layout.sequence_lengths(rope.limit).cpu()
            yield
        finally:
            for rope in self._ropes:
                rope.lengths = None

    def require_constant(self, max_length: int, model: str) -> None:
        """Refuse a run in which a token's frequencies would change while its sequence grows.

        Raises:
            ConfigError: sequences of ``max_length`` tokens are longer than ``limit``.
        """
        if self.limit is not None and max_length > self.limit:
            raise ConfigError(
                f"model {model}: the frequencies of its rotary embedding change when a sequence is longer than "
                f"{self.limit} tokens, also for the tokens before; this run allows {max_length}. Tokens would be "
                f"sampled by other frequencies than those that they are trained with. Set --rollout.max_length "
                f"{self.limit} and a smaller --data.max_prompt_tokens (for evaluations eval.max_length); or, with "
                "longrope, give short_factor and long_factor in the model's config.json the same values: those of "
                "long_factor, as a server for long sequences does.",
                code="model/rope-changes",
            )


def _replace(model: nn.Module) -> None:
    """Put a ``PerSequenceRope`` in the place of each rotary module whose frequencies depend on the length.

    Raises:
        PluginError: such a module is part of a layer; a recomputed layer would see the lengths of another row.
    """
    for name, rotary in list(model.named_modules()):
        limit = constant_length(rotary)
        parent, _, own_name = name.rpartition(".")
        if limit is None or isinstance(model.get_submodule(parent), PerSequenceRope):
            continue
        if any(part.isdigit() for part in name.split(".")):
            raise PluginError(
                f"{type(model).__name__}: {name} rotates by frequencies that depend on the length of the sequence, in "
                "each layer; the torch backend and the embedded engine compute them once for all layers only. Choose "
                "another model.",
                code="model/rope-changes",
            )
        setattr(model.get_submodule(parent), own_name, PerSequenceRope(rotary, limit))


def constant_length(rotary: nn.Module) -> int | None:
    """Return the length in tokens up to which a rotary module's frequencies are constant; None: any length."""
    kinds: Any = getattr(rotary, "rope_type", None)
    config: Any = getattr(rotary, "config", None)
    if kinds is None or config is None:
        return None
    options = config.rope_parameters
    by_layer = isinstance(kinds, dict)
    each: Sequence[tuple[str, dict[str, Any]]] = (
        [(kind, options[layer]) for layer, kind in kinds.items()]
        if by_layer
        else [(kinds, options)]
    )
    limits = [_constant_length(kind, parameters, config) for kind, parameters in each]
    return min((limit for limit in limits if limit is not None), default=None)


def _constant_length(kind: str, parameters: dict[str, Any], config: Any) -> int | None:
    if kind == "longrope":
        pairs = [("short_factor", "long_factor"), ("short_mscale", "long_mscale")]
        if all(parameters.get(short) == parameters.get(long) for short, long in pairs):
            return None
        return int(parameters["original_max_position_embeddings"])
    return int(config.max_position_embeddings) if "dynamic" in kind else None
