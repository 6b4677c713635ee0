"""The head (output or value) of a role whose layers are one graph: its weights and the sums of its gradients.

The head runs outside of the graph, so the graph neither collects the head's weights nor sums the head's gradients.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from rlhf_torch.models.role_model import RoleModel
from rlhf_torch.ranks.ranks import Ranks

from ..partitioned_model import head_modules, leave_whole


class BorrowedHead:
    """The head at stage 3: copies of its parameters, whole from the end of the layers to the end of the pass.

    The copies are separate tensors because of tied embeddings: the parameter is partitioned (empty) while the graph
    runs, and autograd keeps the shape that it saw first.
    """

    def __init__(self, role: RoleModel) -> None:
        modules = head_modules(role)
        self._places = [
            (module, name, parameter)
            for module in modules
            for name, parameter in module.named_parameters(recurse=False)
        ]
        self.leaves: dict[nn.Parameter, nn.Parameter] = {}
        """Whole copy of each parameter of the head, which gets the gradient; empty outside of a pass."""
        leave_whole(modules)
        graph = role.lm.whole_graph
        assert graph is not None
        graph.then = self.borrow

    def borrow(self) -> None:
        """Collect the head's parameters from all ranks and put whole copies in their places; a collective call."""
        parameters: list[Any] = [parameter for _, _, parameter in self._places]
        parameters[0].all_gather(param_list=parameters)
        for module, name, parameter in self._places:
            leaf = nn.Parameter(parameter.data, requires_grad=parameter.requires_grad)
            leaf.grad_dtype = torch.float32
            self.leaves[parameter] = module._parameters[name] = leaf

    def give_back(self) -> None:
        """Put the parameters back in their places, partitioned, and drop the copies."""
        for module, name, parameter in self._places:
            shared: Any = parameter
            module._parameters[name] = parameter
            shared.partition()
        self.leaves.clear()


class HeadGradients:
    """Sums of the head's gradients over micro-batches and ranks.

    Args:
        zero: DeepSpeed's ZeRO optimizer.
        ranks: the ranks to sum over.
        borrowed: the copies that have the gradients at stage 3; None at stages 1 and 2, where the parameters have them.
    """

    def __init__(
        self,
        zero: Any,
        stage: int,
        role: RoleModel,
        ranks: Ranks,
        borrowed: BorrowedHead | None,
    ) -> None:
        self._zero, self._stage, self._ranks = zero, stage, ranks
        self._borrowed = borrowed
        self._head = [
            parameter
            for module in head_modules(role)
            for parameter in module.parameters()
            if parameter.requires_grad
        ]
        # Tied embeddings are in the layers and in the head, so their gradient is the sum of both.
        self._in_graph = set(role.lm.model.base_model.parameters())
        self._sums: list[torch.Tensor | None] = [None] * len(self._head)

    def collect(self) -> None:
        """Move the head's gradients of one backward pass from ``grad`` into the float32 sums."""
        for index, parameter in enumerate(self._head):
            leaf = parameter if self._borrowed is None else self._borrowed.leaves[parameter]
            grad, leaf.grad = leaf.grad, None
            if grad is not None:
                held = self._sums[index]
                self._sums[index] = grad.float() if held is None else held.add_(grad)

    def hand_over(self) -> None:
        """Give DeepSpeed the means over ranks, between the last backward pass and the update; a collective call."""
        totals = [total for total in self._sums if total is not None]
        assert len(totals) == len(self._head), "every pass ends in the head"
        self._ranks.sum_(totals)
        for parameter, total in zip(self._head, totals, strict=True):
            # DeepSpeed's own gradients are means over ranks, for which ``ZeroTraining.backward`` multiplies losses.
            mean = total.flatten().div_(self._ranks.world_size)
            for buffer, part in self._buffers(parameter, mean):
                if parameter in self._in_graph:
                    buffer.view(-1).add_(part)
                else:
                    buffer.view(-1).copy_(part)
        self._sums = [None] * len(self._head)

    def _buffers(
        self, parameter: nn.Parameter, flat: torch.Tensor
    ) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Return pairs: a buffer of DeepSpeed's with a part of the parameter's gradient, and that part of ``flat``.

        Args:
            flat: the whole gradient of the parameter (numel,).
        """
        if self._stage == 3:
            return [self._partition(parameter, flat)]
        zero, found = self._zero, []
        for group, parameters in enumerate(zero.bit16_groups):
            own = [
                p for p in parameters if zero.is_param_in_current_partition[zero.get_param_id(p)]
            ]
            buffers = [
                buffer
                for buffer in zero.averaged_gradients[group]
                if not getattr(buffer, "_zero_padding", False)
            ]
            # DeepSpeed does not always mark the padding behind the last buffer, so the number of buffers decides.
            pairs = zip(own, buffers[: len(own)], strict=True)
            for number, (owned, buffer) in enumerate(pairs):
                if owned is parameter:
                    start = zero.first_offset[group] if number == 0 else 0
                    found.append((buffer, flat[start : start + buffer.numel()]))
        return found

    def _partition(self, parameter: Any, flat: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        partitions = self._zero._DeepSpeedZeroOptimizer_Stage3__param_id_to_grad_partition
        buffer = partitions[parameter.ds_id]
        start = self._ranks.rank * buffer.numel()
        part = flat[start : start + buffer.numel()]
        # The buffer of the last rank is padded.
        return buffer.view(-1)[: len(part)], part
