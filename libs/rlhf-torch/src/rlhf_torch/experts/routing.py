"""Routes of the tokens of an update: recorded in its passes, for the balancing loss and for metrics of the load."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import PreTrainedModel

from rlhf_core import PluginError
from rlhf_core.contracts import Metric, Metrics, RoleSpec, TrainBatch
from rlhf_core.objective import on_device

from .balance import balancing_part
from .choices import ExpertChoices, choices_of
from .family import Router, coefficient_of, num_biases, routers_of, stacks_of, top_k_of
from .load import largest_share, load_entropy, tokens_of_experts

log = logging.getLogger(__name__)

BIASED = (
    "the routers of the %s balance their load by a bias (e_score_correction_bias in %d layers), which training leaves "
    "as it is; the metrics %s/moe say how even the load stays"
)
REPLAY = "algo.correction.replay_routes"
REPLAYS = "the %s sends tokens to the experts that the engine chose: %d layers, %d experts of a token, %d bytes a token"
FACTOR = "the %s is a mixture of experts; the factor of its balancing loss is %g"
LOGITS = "_recorded_logits"
"""Attribute in which a router leaves its last logits. An attribute, so that a compiled layer records too."""
CHOSEN = "_recorded_experts"
"""Attribute in which a stack of experts leaves the experts of its last tokens."""


class Routing:
    """The routes of one trained role.

    Args:
        coefficient: factor of the balancing loss in the loss of an update; 0: it is not computed.
        choices: of the routers, which routes of an engine replace; None: the routers choose.
    """

    def __init__(
        self,
        role: str,
        routers: list[Router],
        stacks: list[nn.Module],
        *,
        coefficient: float,
        top_k: int,
        choices: ExpertChoices | None = None,
    ) -> None:
        self.choices = choices
        self._chooses = False
        self._role, self._stacks, self._top_k = role, stacks, top_k
        self.coefficient = coefficient
        self._routers = [router.module for router in routers] if coefficient else []
        for router in routers if coefficient else ():
            setattr(router.module, LOGITS, None)
            router.module.register_forward_hook(_RecordLogits(router.place))
        for stack in stacks:
            setattr(stack, CHOSEN, None)
            stack.register_forward_pre_hook(_record_experts)
        self.whole: Callable[[Tensor], Tensor] | None = None
        """Sums over ranks that compute slices of the same tokens; None: there are none."""
        self._update_tokens = 1
        self._is_update = False
        self._loads: dict[int, Tensor] = {}
        """Tokens (E,) of each expert, by the number of the layer among those with experts."""
        self._chosen: dict[int, int] = {}
        """Experts of each token, by layer."""
        self._part: Tensor | None = None
        self._losses: list[Tensor] = []

    @contextmanager
    def update(self, tokens: int) -> Iterator[None]:
        """Return a context for the passes of an update, or of another attempt at it; ``metrics`` come after it.

        Args:
            tokens: tokens of the rows that count (``counted_tokens``), over all ranks.
        """
        self._is_update, self._update_tokens = True, max(tokens, 1)
        self._loads, self._chosen, self._part, self._losses = {}, {}, None, []
        if self.choices is not None:
            self.choices.counts, self.choices.differing = True, None
        try:
            yield
        finally:
            self._is_update, self._part = False, None
            if self.choices is not None:
                self.choices.counts, self.choices.given = False, None
            for module in self._routers:
                setattr(module, LOGITS, None)
            for module in self._stacks:
                setattr(module, CHOSEN, None)

    @contextmanager
    def choosing(self) -> Iterator[None]:
        """Return a context in which the routers choose, whatever routes are known."""
        self._chooses = True
        try:
            yield
        finally:
            self._chooses = False

    def follow(self, routes: NDArray[np.signedinteger] | None) -> None:
        """Send the tokens of the next pass, and of its backward pass, to the given experts.

        Args:
            routes: (N, L, k); -1, and None: where the routers choose.

        Raises:
            PluginError: they are not of this model: another number of layers, or of experts of a token, or an id that
                no expert has.
        """
        choices = self.choices
        if choices is None:
            return
        if routes is None or self._chooses:
            choices.given = None
            return
        _check(routes, choices, self._role)
        choices.given = on_device(routes, next(choices.routers[0].parameters()).device)

    def take(self, weights: Tensor) -> None:
        """Take what the modules recorded in the forward pass that has just ended.

        Args:
            weights: (N,) sequences that each token of the pass stands for, in float32.
        """
        if not self._is_update:
            return
        for place, stack in enumerate(self._stacks):
            chosen: Tensor = getattr(stack, CHOSEN)
            tokens = tokens_of_experts(chosen, weights, int(stack.num_experts))  # type: ignore[arg-type]
            # In float64: float32 counts to 16 million.
            self._loads[place] = self._loads.get(place, 0.0) + tokens.double()
            self._chosen[place] = chosen.shape[-1]
        if not self._routers:
            return
        logits = [getattr(router, LOGITS) for router in self._routers]
        for router, recorded in zip(self._routers, logits, strict=True):
            recorded.register_hook(_Forget(router))
        part = balancing_part(
            [recorded.reshape(len(weights), -1) for recorded in logits],
            weights,
            top_k=self._top_k,
            update_tokens=self._update_tokens,
            whole=self.whole,
        )
        self._losses.append(part.detach())
        self._part = self.coefficient * part

    def with_balance(self, loss: Tensor) -> Tensor:
        """Return the loss of the last pass together with its part of the balancing loss."""
        part, self._part = self._part, None
        return loss if part is None else loss + part

    def metrics(self, sum_: Callable[[list[Tensor]], None] | None = None) -> Metrics:
        """Return the load of each layer, and the balancing loss, of the update whose passes have been taken.

        Args:
            sum_: replaces tensors by their sums over ranks; a collective call.
        """
        loads = list(self._loads.values())
        losses = [torch.stack(self._losses).sum()] if self._losses else []
        replays = [] if self.choices is None else [self.choices.counted()]
        if sum_ is not None:
            sum_(loads)
            sum_(losses)
            sum_(replays)
        shares = [
            largest_share(load, k) for load, k in zip(loads, self._chosen.values(), strict=True)
        ]
        named = {f"max_load/{layer}": share for layer, share in enumerate(shares)}
        entropies = [load_entropy(load) for load in loads]
        named |= {f"load_entropy/{layer}": entropy for layer, entropy in enumerate(entropies)}
        if loads:
            named |= {
                "max_load": torch.stack(shares).max(),
                "load_entropy": torch.stack(entropies).min(),
            }
        if losses:
            named["balancing_loss"] = losses[0]
        for differing, given in replays:
            named["replayed_differently"] = differing / given.clamp_min(1.0)
        return {f"{self._role}/moe/{name}": Metric(number) for name, number in named.items()}


def open_routing(spec: RoleSpec, model: PreTrainedModel) -> Routing | None:
    """Return the routing of a role; None for a role that is not trained, or that has no experts.

    Raises:
        ConfigError: a balancing loss is asked for that cannot be computed, or routes are to be replayed of a model
            that is not known to take any.
    """
    if spec.objective is None:
        return None
    coefficient = coefficient_of(model, spec.router_aux_loss)
    routers, stacks = routers_of(model), stacks_of(model)
    choices = choices_of(model, REPLAY) if spec.replays_routes else None
    is_first = not dist.is_initialized() or dist.get_rank() == 0
    if (biases := num_biases(model)) and is_first:
        log.warning(BIASED, spec.role, biases, spec.role)
    if not routers and not stacks:
        return None
    if is_first:
        log.info(FACTOR, spec.role, coefficient)
    if choices is not None and is_first:
        log.info(REPLAYS, spec.role, *choices.shape, choices.bytes_per_token)
    return Routing(
        spec.role, routers, stacks, coefficient=coefficient, top_k=top_k_of(model), choices=choices
    )


def counted_tokens(batch: TrainBatch) -> int:
    """Return the number of tokens of the rows that have an action; others have no part in an update."""
    parts = [batch.trajectories, *([batch.supervised] if batch.supervised is not None else [])]
    return sum(int(part.num_tokens[part.num_actions > 0].sum()) for part in parts)


def _check(routes: NDArray[np.signedinteger], choices: ExpertChoices, role: str) -> None:
    shape, wanted = routes.shape[1:], choices.shape
    if shape != wanted:
        raise PluginError(
            f"routes for the {role} of (layers, experts of a token) {shape}; its model has {wanted}. Expected routes "
            "of an engine that serves this model",
            code="rollout/routes-of-another-model",
        )
    if not len(routes):
        return
    unknown = routes < 0
    if (unknown.any(axis=2) != unknown.all(axis=2)).any():
        raise PluginError(
            f"routes for the {role} name fewer than {wanted[1]} experts of a token in a layer; expected all, or -1 for "
            "each of them",
            code="rollout/incomplete-routes",
        )
    largest = routes.max(axis=(0, 2))  # (L,)
    if (wrong := np.flatnonzero(largest >= np.array(choices.num_experts))).size:
        layer = int(wrong[0])
        raise PluginError(
            f"routes for the {role} name expert {largest[layer]} in layer {layer} of those with experts, which has "
            f"{choices.num_experts[layer]}; expected ids from 0 on, or -1 where they are not known",
            code="rollout/unknown-expert",
        )


class _RecordLogits:
    """A hook that leaves a router's logits in the router.

    It records in recomputed passes too: a layer that is compiled and recomputed has to be the same graph both times.
    """

    def __init__(self, index: int) -> None:
        self._index = index

    def __call__(self, module: nn.Module, inputs: Any, output: Any) -> None:
        if torch.is_grad_enabled():
            setattr(module, LOGITS, output[self._index] if isinstance(output, tuple) else output)


def _record_experts(module: nn.Module, inputs: Any) -> None:
    if torch.is_grad_enabled():
        setattr(module, CHOSEN, inputs[1])


class _Forget:
    """A hook on logits whose gradient is known: what a recomputed pass left must not outlive it."""

    def __init__(self, router: nn.Module) -> None:
        self._router = router

    def __call__(self, grad: Tensor) -> None:
        setattr(self._router, LOGITS, None)
