"""From accumulated gradients to new weights: clipping, schedule, optimizer, moving average, reference.

Parameters in half precision are trained through float32 copies: at the learning rates of RL most updates are smaller
than half a bfloat16 step, and adding them to bfloat16 weights would change nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace

import torch
from torch import Tensor, nn

from rlhf_core.contracts import Metric, Metrics, NamedParameters, Optimizer, RoleSpec, TrainBatch
from rlhf_core.objective import read_metrics

from ..experts.routing import Routing
from .gradient_sums import add_gradient
from .group_options import group_options
from .trained_parts import log_groups, parameter_groups, peak_lrs, require_trainable

COPIED_AT_ONCE = 2**28
"""Bytes of gradients that become float32 by one kernel. All at once would stay until the last has its float32 copy."""


class Updater:
    """The state of training beside the weights: float32 copies, optimizer, schedule and moving average.

    Args:
        named: the trainable parameters; ``NamedParameters`` also know which of them are gains of norms.
        spec: the role's schedule, gradient clipping and decay of the moving average.
        optimizer: the component that groups the parameters and creates the torch optimizer.

    Raises:
        ConfigError: nothing is trainable.
        PluginError: the optimizer component left a parameter out, took one twice, or set no learning rate.
    """

    def __init__(
        self, named: Sequence[tuple[str, nn.Parameter]], spec: RoleSpec, optimizer: Optimizer
    ) -> None:
        self.weights = dict(named)
        require_trainable(spec.role, self.weights)
        self.masters = {name: _master_of(weight) for name, weight in named}
        self.copied = {name: weight for name, weight in named if weight.dtype != torch.float32}
        """The weights whose master is a float32 copy. A model may hold both kinds beside each other."""
        self._spec = spec
        masters = replace(NamedParameters.of(named), pairs=tuple(self.masters.items()))
        groups = parameter_groups(optimizer, masters)
        log_groups(spec.role, groups)
        self.optimizer = optimizer.create(groups)
        self.peak_lrs = peak_lrs(self.optimizer, groups)
        self.initial_groups = group_options(self.optimizer)
        self.updates = 0
        """Number of updates asked for so far, skipped ones included, so that the schedule follows the plan."""
        self.ema: dict[str, Tensor] = {}
        if spec.ema_decay is not None:
            self.ema = {name: master.detach().clone() for name, master in self.masters.items()}
        self.reference = reference_of(list(self.masters.values()), spec.reference_sync)
        """The role's own reference, in the order of ``masters``; empty if there is none."""

    def collect(self) -> None:
        """Add the gradients of one micro-batch to the float32 copies, and clear them on the model.

        A float32 weight is its own master, and its ``.grad`` adds up by itself.
        """
        first: list[Tensor] = []
        copies: list[Tensor] = []
        pending = 0
        for name, weight in self.copied.items():
            if weight.grad is None:
                continue
            master = self.masters[name]
            if master.grad is None:
                master.grad = torch.empty_like(master)
                copies.append(master.grad)
                first.append(weight.grad)
                pending += weight.grad.nbytes
            else:
                add_gradient(master.grad, weight.grad)
            weight.grad = None
            if pending >= COPIED_AT_ONCE:
                torch._foreach_copy_(copies, first)
                first, copies, pending = [], [], 0
        if copies:
            # One kernel for many tensors, at twice the speed of a cast of each.
            torch._foreach_copy_(copies, first)

    def drop_gradient(self) -> None:
        """Forget the gradients that have been collected, and what of them stands on the model."""
        for weight in (*self.weights.values(), *self.masters.values()):
            weight.grad = None

    def update(self, factor_of_plan: float = 1.0) -> Metrics:
        """Clip the gradients, step the optimizer and the moving average, clear the gradients, and return metrics.

        A gradient that is not finite skips the update: nothing changes but the count of updates, and ``skipped`` is 1.

        Args:
            factor_of_plan: ``StepPlan.lr_factor``.
        """
        factor = self._spec.schedule.factor(self.updates) * factor_of_plan
        self.updates += 1
        with_grad = [master for master in self.masters.values() if master.grad is not None]
        grads = [master.grad for master in with_grad if master.grad is not None]
        norm = float(torch.nn.utils.get_total_norm(grads)) if grads else 0.0
        finite = math.isfinite(norm)
        if finite:
            limit = self._spec.max_grad_norm
            if limit is not None and norm > limit:
                torch._foreach_mul_(grads, limit / (norm + 1e-6))
            self._step(factor)
        for master in with_grad:
            master.grad = None
        metrics = {"lr": Metric(self.peak_lrs[0] * factor, reduction="last")}
        if finite:
            metrics["grad_norm"] = Metric(norm)
        return metrics | {"skipped": Metric(float(not finite), reduction="sum")}

    def _step(self, factor: float) -> None:
        for group, peak in zip(self.optimizer.param_groups, self.peak_lrs, strict=True):
            group["lr"] = peak * factor
        self.optimizer.step()
        self.publish()
        if self.ema:
            assert self._spec.ema_decay is not None
            with torch.no_grad():
                torch._foreach_lerp_(
                    list(self.ema.values()), list(self.masters.values()), 1.0 - self._spec.ema_decay
                )

    def sync_reference(self) -> None:
        """Move the role's own reference to the weights, if there is one: see ``sync_reference``."""
        sync_reference(self.reference, list(self.masters.values()), self._spec.reference_sync)

    def holding_reference(self) -> AbstractContextManager[None]:
        """Have the model hold the role's own reference inside of the context, and its own weights again after it."""
        return exchanged(list(self.masters.values()), self.reference, self.publish)

    @torch.no_grad()
    def publish(self) -> None:
        """Round the float32 copies into the model."""
        if self.copied:
            masters: list[Tensor] = [self.masters[name] for name in self.copied]
            torch._foreach_copy_(list(self.copied.values()), masters)

    def changing(self) -> Iterator[Tensor]:
        """Yield every tensor that an update changes: the weights, and what ``state`` yields."""
        yield from self.weights.values()
        yield from self.state()

    def state(self) -> Iterator[Tensor]:
        """Yield every tensor beside the weights: float32 copies, optimizer state, moving average, reference."""
        for name, master in self.masters.items():
            if name in self.copied:
                yield master
            for value in self.optimizer.state.get(master, {}).values():
                if isinstance(value, Tensor):
                    yield value
        yield from self.ema.values()
        yield from self.reference


def _master_of(weight: nn.Parameter) -> nn.Parameter:
    if weight.dtype == torch.float32:
        return weight
    return nn.Parameter(weight.detach().float())


def reference_of(masters: Sequence[Tensor], share: float | None) -> list[Tensor]:
    """Return the reference that a role keeps, as its float32 weights are now; empty if it keeps none.

    Args:
        share: ``RoleSpec.reference_sync``.
    """
    return [] if share is None else [master.detach().clone() for master in masters]


@torch.no_grad()
def sync_reference(
    reference: Sequence[Tensor], masters: Sequence[Tensor], share: float | None
) -> None:
    """Move a reference by ``share`` of the way to the weights: share * weights + (1 - share) * reference.

    All of it is float32, also beside a model in bfloat16: there a share of 0.01 would be lost in rounding. A share of 1
    makes the reference equal to the weights, to the bit.

    Source: Gorbatovski et al. 2024 (TR-DPO), arXiv:2404.09656: the soft update with alpha, and the hard one at 1.
    """
    if not reference:
        return
    assert share is not None
    own = [master.detach() for master in masters]
    if share == 1.0:
        torch._foreach_copy_(list(reference), own)
    else:
        torch._foreach_lerp_(list(reference), own, share)


@contextmanager
def exchanged(
    masters: Sequence[Tensor], others: Sequence[Tensor], publish: Callable[[], None]
) -> Iterator[None]:
    """Exchange a model's float32 weights with other ones inside of the context, to the bit.

    Args:
        others: as many, of the same shapes; they hold the weights meanwhile.
        publish: has the model compute with its float32 weights.
    """
    # One buffer for all, made first: a failure between two tensors would leave a mixture behind.
    largest = max((master.numel() for master in masters), default=0)
    buffer = torch.empty(largest, device=masters[0].device if masters else None)
    _exchange(masters, others, buffer)
    try:
        publish()
        yield
    finally:
        _exchange(masters, others, buffer)
        publish()


@torch.no_grad()
def _exchange(masters: Sequence[Tensor], others: Sequence[Tensor], buffer: Tensor) -> None:
    for master, other in zip(masters, others, strict=True):
        held = buffer[: master.numel()].view(master.shape)
        held.copy_(master)
        master.copy_(other)
        other.copy_(held)


def update_metrics(
    role: str,
    batch: TrainBatch,
    parts: Sequence[Metrics],
    update: Metrics,
    routing: Routing | None,
    *,
    sum_: Callable[[list[Tensor]], None] | None = None,
    is_first: bool = True,
) -> Metrics:
    """Return the metrics of a role's update as plain numbers, this rank's share of them.

    Args:
        parts: metrics of each micro-batch.
        update: metrics of the updater, which get the role's name; those of experts come from ``routing``.
        sum_: replaces tensors by their sums over ranks; a collective call where there are experts.
        is_first: whether this rank reports the skipped update, which all ranks know and the runtime sums.
    """
    last: Metrics = {
        "train/tokens": Metric(int(batch.trajectories.num_tokens.sum()), reduction="sum"),
        "train/micro_batches": Metric(len(parts), reduction="sum"),
    }
    for name, metric in update.items():
        if name != "skipped":
            last[f"{role}/{name}"] = metric
        elif is_first:
            last["train/skipped_updates"] = metric
    if routing is not None:
        last |= routing.metrics(sum_)
    return read_metrics([*parts, last])
