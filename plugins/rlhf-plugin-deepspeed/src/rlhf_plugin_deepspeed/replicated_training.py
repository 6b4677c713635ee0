"""Training under stage 0: everything on every rank, and one sum of gradients per step.

DeepSpeed's engine would have nothing to share here, and would add bfloat16 gradients up in bfloat16, so it is not
started: this is the updater of the torch backend with the ranks' gradients added.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from rlhf_core.contracts import Metrics, Optimizer, RoleSpec
from rlhf_plugin_local.backend.export import holding
from rlhf_plugin_local.backend.role_model import RoleModel
from rlhf_plugin_local.backend.updater import Updater

from .ranks import Ranks


class ReplicatedTraining:
    """A trained role, whole on every rank."""

    stage = 0

    def __init__(self, role: RoleModel, spec: RoleSpec, optimizer: Optimizer, ranks: Ranks) -> None:
        self._ranks = ranks
        self.updater = Updater(role.named_trainable(), spec, optimizer)

    def forward(self, work: Callable[[], Tensor]) -> Tensor:
        """Return the loss that ``work`` computes."""
        return work()

    def backward(self, loss: Tensor, *, last: bool) -> None:
        """Add the gradient of this micro-batch to the step's; after the last one, those of the other ranks."""
        loss.backward()  # type: ignore[no-untyped-call]
        self.updater.collect()
        if last:
            self._add_ranks()

    def score(self, work: Callable[[], tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
        """Return what ``work`` computes."""
        return work()

    def update(self) -> Metrics:
        """Clip, step, average; skip what is not finite."""
        return self.updater.update()

    def _add_ranks(self) -> None:
        """Sum the gradients of parameters that have one on any rank."""
        if self._ranks.world_size == 1:
            return
        masters = list(self.updater.masters.values())
        used = torch.tensor(
            [master.grad is not None for master in masters], device=self._ranks.device
        )
        counts = used.int()
        self._ranks.sum_([counts])
        gradients = []
        for master, count in zip(masters, counts.tolist(), strict=True):
            if count:
                if master.grad is None:
                    master.grad = torch.zeros_like(master)
                gradients.append(master.grad)
        self._ranks.sum_(gradients)

    @contextmanager
    def holding_average(self) -> Iterator[None]:
        """Let the model hold the moving average for a while, then its own weights again, to the bit."""
        with holding(self.updater.weights, self.updater.ema):
            yield

    def close(self) -> None:
        """Nothing is left behind."""
