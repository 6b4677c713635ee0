"""Training of a sharded role: each rank updates its rows of every parameter."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import cast

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from rlhf_core.contracts import Metric, Metrics, Optimizer, ParameterGroup, RoleSpec
from rlhf_torch.cut.average import holding_average, move_average
from rlhf_torch.cut.flattening import whole_parameters
from rlhf_torch.cut.fragment import Fragment
from rlhf_torch.cut.whole_updates import WholeUpdates
from rlhf_torch.models.role_model import RoleModel
from rlhf_torch.ranks.ranks import Ranks
from rlhf_torch.training.group_options import group_options
from rlhf_torch.training.trained_parts import (
    log_groups,
    parameter_groups,
    peak_lrs,
    require_trainable,
)
from rlhf_torch.training.updater import exchanged, reference_of, sync_reference

from .config import FsdpConfig
from .sharding import shard

WAY_OUT = "Choose another optimizer, such as adam, or --backend deepspeed with zero_stage 0."


class FsdpTraining:
    """Training state of a role that ranks share: float32 weights, optimizer, schedule and moving average.

    Args:
        role: the model, in host memory or on this rank's device; torch moves and cuts it.
        optimizer: the optimizer component.

    Raises:
        ConfigError: no parameter is trainable, or the options do not fit the model.
        PluginError: ranks cannot share the parameter groups or the state of the optimizer.
    """

    tensor_parallel, shard = 1, 0
    """No matrix is cut beside what torch cuts."""

    def __init__(
        self,
        role: RoleModel,
        spec: RoleSpec,
        optimizer: Optimizer,
        config: FsdpConfig,
        ranks: Ranks,
    ) -> None:
        self._spec, self._ranks = spec, ranks
        uncut = role.named_trainable()
        shapes = {name: parameter.shape for name, parameter in uncut}
        require_trainable(spec.role, shapes)
        # The component decides by shapes, so it makes its parameter groups before the parameters are cut.
        groups = parameter_groups(optimizer, uncut)
        if ranks.is_first:
            log_groups(spec.role, groups)
        self.sharded = shard(role, spec, config, ranks)
        self.named = dict(role.named_trainable())
        self._masters = {name: nn.Parameter(_own(p)) for name, p in self.named.items()}
        self.fragments = [
            fragment
            for index, name in enumerate(self.named)
            if (fragment := _fragment(name, index, shapes[name], ranks)).length
        ]
        self.optimizer = self._create(optimizer, groups, shapes)
        self.peak_lrs = peak_lrs(self.optimizer, groups)
        self.initial_groups = group_options(self.optimizer)
        self.updates = 0
        """Number of updates so far, skipped updates included, because the schedule follows the plan."""
        self.ema: list[Tensor] = []
        """This rank's part of the moving average, in the layout of ``masters``; empty if none is kept."""
        if spec.ema_decay is not None:
            self.ema = [vector.detach().clone() for vector in self.masters]
        self.reference = reference_of(self.masters, spec.reference_sync)
        """This rank's part of the role's own reference, in the layout of ``masters``; empty if none is kept."""

    def _create(
        self,
        optimizer: Optimizer,
        groups: Sequence[ParameterGroup],
        shapes: dict[str, torch.Size],
    ) -> torch.optim.Optimizer:
        """Return the component's optimizer of this rank's vectors, which updates whole parameters where it has to."""
        device = self._ranks.device
        # The component sees whole shapes, in float32 and on the device; one number stands for all elements.
        seen = {
            name: nn.Parameter(torch.zeros((), device=device).expand(shape))
            for name, shape in shapes.items()
        }
        groups = [
            replace(group, named_parameters=tuple((n, seen[n]) for n, _ in group.named_parameters))
            for group in groups
        ]
        whole = whole_parameters(optimizer, groups, device, WAY_OUT)
        created = optimizer.create(groups)
        made = WholeUpdates(created, whole) if whole else created
        names = {id(parameter): name for name, parameter in seen.items()}
        for group in made.param_groups:
            group["params"] = [self._masters[names[id(p)]] for p in group["params"]]
        if isinstance(made, WholeUpdates):
            made.attach(self.masters, self.fragments, shapes, self._ranks)
        return made

    @property
    def masters(self) -> list[nn.Parameter]:
        """This rank's rows of the float32 weights, as vectors: the model's own memory, not copies."""
        return list(self._masters.values())

    def forward(self, work: Callable[[], Tensor]) -> Tensor:
        """Return the loss that ``work`` computes; a collective call, so all ranks make equally many."""
        loss: Tensor = self.sharded(work)
        return loss

    def backward(self, loss: Tensor, *, last: bool) -> None:
        """Add the gradient of this micro-batch, summed over ranks, to the gradient of the update; a collective call."""
        loss.backward()

    def drop_gradient(self) -> None:
        """Forget what stands of the gradient of an update."""
        for parameter in self.named.values():
            parameter.grad = None
        for master in self.masters:
            master.grad = None

    def give_up_pass(self) -> None:
        """Raise: a rank cannot leave a pass without the others."""
        raise NotImplementedError("only where a pass can be given up")

    def complete(self) -> None:
        """Do nothing: each backward pass has summed its gradients."""

    def update(self, factor_of_plan: float) -> Metrics:
        """Clip the gradient, update the weights and the moving average, and return learning rate and gradient norm.

        If a gradient is not finite on any rank, all ranks skip the update: only ``updates`` and ``skipped`` count it.

        Args:
            factor_of_plan: ``StepPlan.lr_factor``.
        """
        factor = self._spec.schedule.factor(self.updates) * factor_of_plan
        self.updates += 1
        for name, parameter in self.named.items():
            if parameter.grad is not None:
                self._masters[name].grad = _own(parameter.grad)
        gradients = [master.grad for master in self.masters if master.grad is not None]
        norm = self._norm(gradients)
        finite = math.isfinite(norm)
        if finite:
            limit = self._spec.max_grad_norm
            if limit is not None and norm > limit:
                torch._foreach_mul_(gradients, limit / (norm + 1e-6))
            for group, peak in zip(self.optimizer.param_groups, self.peak_lrs, strict=True):
                group["lr"] = peak * factor
            self.optimizer.step()
            move_average(self, self._spec.ema_decay)
        self.drop_gradient()
        metrics = {"lr": Metric(self.peak_lrs[0] * factor, reduction="last")}
        if finite:
            metrics["grad_norm"] = Metric(norm)
        return metrics | {"skipped": Metric(float(not finite), reduction="sum")}

    def _norm(self, gradients: Sequence[Tensor]) -> float:
        """Return the norm of the gradient of all ranks; a collective call."""
        device = self._ranks.device
        squares = torch.zeros((), device=device)
        if gradients:
            squares = torch.nn.utils.get_total_norm(gradients).square()
        self._ranks.sum_([squares])
        return math.sqrt(float(squares)) if math.isfinite(float(squares)) else float(squares)

    def publish(self) -> None:
        """Do nothing: the model computes with ``masters``."""

    def sync_reference(self) -> None:
        """Move this rank's part of the role's own reference to the weights, if there is one."""
        sync_reference(self.reference, self.masters, self._spec.reference_sync)

    def holding_reference(self) -> AbstractContextManager[None]:
        """Have the model hold the role's own reference inside of the context, and its own weights again after it."""
        return exchanged(self.masters, self.reference, self.publish)

    def holding_average(self) -> AbstractContextManager[None]:
        """Have the model hold the moving average inside of the context, and its own weights again after it."""
        return holding_average(self)

    def changing(self) -> Iterator[Tensor]:
        """Yield every tensor of this rank that an update changes: the weights, and what ``state`` yields."""
        yield from self.masters
        yield from self.state()

    def state(self) -> Iterator[Tensor]:
        """Yield every tensor beside the weights: optimizer state, moving average and reference."""
        for state in self.optimizer.state.values():
            yield from (value for value in state.values() if isinstance(value, Tensor))
        yield from self.ema
        yield from self.reference


def _own(tensor: Tensor) -> Tensor:
    """Return this rank's rows of a tensor that ranks share, as a vector in the same memory."""
    return cast("DTensor", tensor.detach()).to_local().view(-1)


def _fragment(name: str, index: int, shape: torch.Size, ranks: Ranks) -> Fragment:
    """Return this rank's rows of a parameter: torch gives each rank equally many, the last ones fewer or none."""
    rows, width = shape[0], shape[1:].numel()
    share = -(-rows // ranks.world_size)
    first, stop = (min(rank * share, rows) for rank in (ranks.rank, ranks.rank + 1))
    return Fragment(
        name=name, vector=index, offset=0, start=first * width, length=(stop - first) * width
    )
