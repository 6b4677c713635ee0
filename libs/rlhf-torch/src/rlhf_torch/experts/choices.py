"""Choices of a model's routers: taken down for an engine, or replaced by those of one for a trainer.

A router scores the experts, takes the k best by ``topk``, and makes weights of their scores, each family in its own
way. Here the answer of that one call is changed: the given experts, with the scores that the router itself gave them.
All that the family does before and behind it stays its own code, and gradients flow through the scores.

Source: Ma et al. 2025, "Stabilizing MoE Reinforcement Learning by Aligning Training and Inference Routers",
arXiv:2510.11370 (rollout routing replay).

``N`` tokens of a pass, ``L`` layers with experts, ``k`` experts of a token, ``E`` experts of a layer.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from transformers import PreTrainedModel

from rlhf_core import ConfigError, headline

from .family import routers_of, stacks_of

TOP_K = (torch.topk, torch.Tensor.topk)
SMALL = 128
"""Experts up to which an id fits into int8, -1 among them."""


class ExpertChoices:
    """The routers of one model, in the order of its layers with experts.

    Use ``choices_of``.
    """

    def __init__(self, routers: list[nn.Module], num_experts: list[int]) -> None:
        self.routers, self.num_experts = routers, num_experts
        self.top_k = 0
        """k, as the routers were seen to choose."""
        self.given: Tensor | None = None
        """(N, L, k) experts of the tokens of the next passes, -1 where the routers choose. It has to stay until the
        backward pass is over, which may compute layers again. None: the routers choose."""
        self.counts = False
        """Whether ``differing`` counts."""
        self.differing: Tensor | None = None
        """(2,) choices of a token in a layer for which the routers had others than the given experts, and all given
        ones, since this was last set to None; None: there were none."""
        self._taken: list[Tensor] | None = None
        self.modes = [_Choice(self, layer) for layer in range(len(routers))]

    @property
    def shape(self) -> tuple[int, int]:
        """(L, k)"""
        return len(self.routers), self.top_k

    @property
    def dtype(self) -> torch.dtype:
        """Type of ids, the smallest with a sign."""
        return torch.int8 if max(self.num_experts) <= SMALL else torch.int16

    @property
    def bytes_per_token(self) -> int:
        """Bytes of the ids of one token."""
        return len(self.routers) * self.top_k * self.dtype.itemsize

    def counted(self) -> Tensor:
        """Return ``differing``, zeros where nothing was counted."""
        if self.differing is not None:
            return self.differing
        device = next(self.routers[0].parameters()).device
        return torch.zeros(2, dtype=torch.float64, device=device)

    @property
    def is_idle(self) -> bool:
        """Whether routers are left alone."""
        return self.given is None and self._taken is None

    @contextmanager
    def taken_down(self) -> Iterator[list[Tensor]]:
        """Return a context in which the routers choose, and their experts (N, k) are appended to a list, by layer."""
        taken: list[Tensor] = []
        self._taken = taken
        try:
            yield taken
        finally:
            self._taken = None

    def answer(self, layer: int, scores: Tensor, own: Any) -> Any:
        """Return what ``topk`` of the scores (N, E) is to return in place of the router's ``own`` choice."""
        if self._taken is not None:
            self._taken.append(own.indices)
            return own
        assert self.given is not None
        given = self.given[:, layer].long()  # (N, k)
        known = given[:, :1] >= 0
        indices = torch.where(known, given, own.indices)
        if self.counts:
            self._compare(own.indices, indices, known)
        return torch.return_types.topk((scores.gather(-1, indices), indices))

    @torch.no_grad()
    def _compare(self, own: Tensor, used: Tensor, known: Tensor) -> None:
        differs = (own.sort(dim=-1).values != used.sort(dim=-1).values).any(dim=-1)
        found = torch.stack([differs.sum(), known.sum()]).double()
        self.differing = found if self.differing is None else self.differing + found


class _Choice(TorchFunctionMode):
    """Changes the one call of ``topk`` by which a router chooses experts: that of scores (N, E)."""

    def __init__(self, choices: ExpertChoices, layer: int) -> None:
        super().__init__()
        self._choices, self._layer = choices, layer

    # Any: what torch hands over.
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func not in TOP_K:
            return result
        scores: Tensor = args[0] if args else kwargs["input"]
        choices, layer = self._choices, self._layer
        # Groups of experts, which some families choose first, are fewer than experts, or a dimension of their own.
        if scores.dim() != 2 or scores.shape[1] != choices.num_experts[layer]:
            return result
        return choices.answer(layer, scores, result)


class _Followed(nn.Module):
    """A router whose choices are taken down or given."""

    _choice: tuple[ExpertChoices, int]

    # A graph knows no experts from outside.
    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def forward(self, *arguments: Any, **options: Any) -> Any:
        choices, layer = self._choice
        if choices.is_idle:
            return super().forward(*arguments, **options)
        with choices.modes[layer]:
            return super().forward(*arguments, **options)


@cache
def _followed(kind: type[nn.Module]) -> type[nn.Module]:
    return type(kind.__name__, (_Followed, kind), {"__module__": kind.__module__})


def choices_of(model: PreTrainedModel, asked_by: str) -> ExpertChoices:
    """Return the choices of a model's routers, which can be taken down and given from now on.

    Args:
        asked_by: what asks for it, for messages.

    Raises:
        ConfigError: the model has no experts, or its routers choose in a way that is not known.
    """
    routers = [router.module for router in routers_of(model)]
    known = getattr(routers[0], "_choice", None) if routers else None
    if known is not None:
        found: ExpertChoices = known[0]
        return found
    stacks = stacks_of(model)
    family = type(model).__name__
    if not routers and not stacks:
        raise ConfigError(
            f"{asked_by}: expected a mixture of experts, whose routes can be replayed; {family} has no experts. "
            "Leave it out.",
            code="model/no-experts",
        )
    if len(routers) != len(stacks):
        raise ConfigError(
            _unknown(asked_by, family, f"{len(routers)} routers, {len(stacks)} stacks of experts"),
            code="model/unknown-router",
        )
    num_experts = [int(stack.num_experts) for stack in stacks]  # type: ignore[arg-type]
    choices = ExpertChoices(routers, num_experts)
    for layer, router in enumerate(routers):
        kind: Any = type(router)
        router.__class__ = _followed(kind)
        router._choice = (choices, layer)  # type: ignore[assignment]
    _try(choices, model, asked_by)
    return choices


@torch.no_grad()
def _try(choices: ExpertChoices, model: PreTrainedModel, asked_by: str) -> None:
    """Refuse a family with a router that does not choose by one ``topk``."""
    family, width = type(model).__name__, int(model.config.get_text_config().hidden_size)
    for layer, router in enumerate(choices.routers):
        weight = next(router.parameters())
        problem = ""
        try:
            with choices.taken_down() as taken:
                router(torch.zeros(2, width, dtype=weight.dtype, device=weight.device))
            widths = {choices.top_k or own.shape[-1] for own in taken} | {
                own.shape[-1] for own in taken
            }
            if len(taken) != 1 or len(widths) != 1:
                problem = f"{len(taken)} calls of topk in layer {layer}"
            else:
                (choices.top_k,) = widths
        except (RuntimeError, TypeError, ValueError, IndexError) as error:
            problem = headline(error)
        if problem:
            raise ConfigError(_unknown(asked_by, family, problem), code="model/unknown-router")


def _unknown(asked_by: str, family: str, found: str) -> str:
    return (
        f"{asked_by}: expected a family each of whose routers chooses its experts by one topk over all of them; "
        f"{family} is not known to ({found}). Leave it out."
    )
