"""Training at stage 0: model and training state whole on every rank, and one sum of gradients per update.

DeepSpeed's engine is not started: it would have nothing to share at this stage, and would add bfloat16 gradients up in
bfloat16. Instead the torch backend's updater gets the sum of the ranks' gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import torch
from torch import Tensor

from rlhf_core.contracts import Metrics, Optimizer, RoleSpec
from rlhf_torch.models.export import holding
from rlhf_torch.models.role_model import RoleModel
from rlhf_torch.ranks.ranks import Ranks
from rlhf_torch.training.updater import Updater


class ReplicatedTraining:
    """Training of a role whose model and training state are whole on every rank."""

    stage = 0
    recovers = True
    """Whether a pass that failed can be given up without ranks that wait: they exchange nothing until the end."""

    def __init__(self, role: RoleModel, spec: RoleSpec, optimizer: Optimizer, ranks: Ranks) -> None:
        self._ranks = ranks
        self.updater = Updater(role.named_trainable(), spec, optimizer)

    @property
    def updates(self) -> int:
        """Number of updates so far, skipped updates included."""
        return self.updater.updates

    @updates.setter
    def updates(self, number: int) -> None:
        self.updater.updates = number

    def forward(self, work: Callable[[], Tensor]) -> Tensor:
        """Return the loss that ``work`` computes."""
        return work()

    def backward(self, loss: Tensor, *, last: bool) -> None:
        """Add the gradient of this micro-batch to the gradient of the update.

        Args:
            last: this micro-batch is the last of the update.
        """
        loss.backward()
        self.updater.collect()

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """The torch optimizer."""
        return self.updater.optimizer

    def changing(self) -> Iterator[Tensor]:
        """Yield every tensor that an update changes, all of them on every rank."""
        yield from self.updater.changing()

    def drop_gradient(self) -> None:
        """Forget what an attempt before has added to the gradient of the update."""
        self.updater.drop_gradient()

    def give_up_pass(self) -> None:
        """Do nothing: other ranks do not wait for a pass."""

    def complete(self) -> None:
        """Sum the gradient over ranks; a collective call after the last pass."""
        self._add_ranks()

    def score(self, work: Callable[[], tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
        """Return the results of ``work``."""
        return work()

    def update(self, factor_of_plan: float) -> Metrics:
        """Clip the gradient, update the weights and the moving average, and return the updater's metrics.

        An update whose gradient is not finite is skipped.

        Args:
            factor_of_plan: ``StepPlan.lr_factor``.
        """
        return self.updater.update(factor_of_plan)

    def _add_ranks(self) -> None:
        """Replace each gradient by its sum over ranks; a parameter without a gradient on every rank stays without."""
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

    def publish(self) -> None:
        """Round the float32 weights into the model."""
        self.updater.publish()

    @property
    def reference(self) -> list[Tensor]:
        """The role's own reference, whole on every rank; empty if none is kept."""
        return self.updater.reference

    def sync_reference(self) -> None:
        """Move the role's own reference to the weights, if there is one."""
        self.updater.sync_reference()

    def holding_reference(self) -> AbstractContextManager[None]:
        """Have the model hold the role's own reference inside of the context, and its own weights again after it."""
        return self.updater.holding_reference()

    @contextmanager
    def holding_average(self) -> Iterator[None]:
        """Have the model hold the moving average inside of the context, and its own weights again after it."""
        with holding(self.updater.weights, self.updater.ema):
            yield

    def close(self) -> None:
        """Do nothing: this stage leaves nothing behind."""
