"""From accumulated gradients to new weights: clipping, schedule, optimizer, moving average.

Parameters in half precision are trained through float32 copies: at the learning rates of RL most updates are smaller
than half a bfloat16 step, and adding them to bfloat16 weights would change nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from rlhf_core.contracts import Metric, Metrics, NamedParameters, Optimizer, RoleSpec
from rlhf_core.math import lr_factor

from .trained_parts import check_groups, log_groups, peak_lrs, require_trainable


class Updater:
    """Holds everything that training has beside the weights themselves.

    Args:
        named: the trainable parameters; as ``NamedParameters``, with what is a matrix among them.
        spec: of the role: schedule, clipping, decay of the moving average.
        optimizer: the component.

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
        gains = NamedParameters.of(named).gains
        groups = optimizer.parameter_groups(NamedParameters(tuple(self.masters.items()), gains))
        check_groups(groups, self.masters)
        log_groups(spec.role, groups)
        self.optimizer = optimizer.create(groups)
        self.peak_lrs = peak_lrs(self.optimizer)
        self.updates = 0
        """Updates asked for so far, skipped ones included: the schedule follows the plan."""
        self._offloaded: list[tuple[str, str]] = []
        self.ema: dict[str, Tensor] = {}
        if spec.ema_decay is not None:
            self.ema = {name: master.detach().clone() for name, master in self.masters.items()}

    def collect(self) -> None:
        """Take over the gradients of one micro-batch; they add up in float32.

        A float32 weight is its own master, and its ``.grad`` adds up by itself.
        """
        for name, weight in self.copied.items():
            if weight.grad is None:
                continue
            master = self.masters[name]
            if master.grad is None:
                master.grad = weight.grad.float()
            else:
                # The addition reads bfloat16 as it is: a cast of its own takes half as long again.
                master.grad.add_(weight.grad)
            weight.grad = None

    def update(self) -> Metrics:
        """Clip, step, average, and clear the gradients.

        With a gradient that is not finite nothing changes but the count of updates.
        """
        factor = lr_factor(self._spec.schedule, self.updates)
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

    @torch.no_grad()
    def publish(self) -> None:
        """Round the float32 copies into the model."""
        for name, weight in self.copied.items():
            weight.copy_(self.masters[name])

    def offload(self) -> None:
        """Move optimizer state, float32 copies and averages to the host."""
        host = torch.device("cpu")
        for name, master in self.masters.items():
            for key, value in self.optimizer.state.get(master, {}).items():
                # What the optimizer itself keeps on the host (AdamW's step count) stays there for good.
                if isinstance(value, Tensor) and value.device != host:
                    self._offloaded.append((name, key))
            if name in self.copied:
                master.data = master.data.to(host)
        self._move_state(host)

    def reload(self, device: torch.device) -> None:
        """Undo ``offload``."""
        for name in self.copied:
            master = self.masters[name]
            master.data = master.data.to(device)
        self._move_state(device)
        self._offloaded.clear()

    def _move_state(self, device: torch.device) -> None:
        for name, key in self._offloaded:
            state = self.optimizer.state[self.masters[name]]
            state[key] = state[key].to(device)
        self.ema = {name: average.to(device) for name, average in self.ema.items()}


def _master_of(weight: nn.Parameter) -> nn.Parameter:
    if weight.dtype == torch.float32:
        return weight
    return nn.Parameter(weight.detach().float())
