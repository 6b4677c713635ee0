"""The output or value head of a role whose layers are one graph: outside of it, with gradients of its own."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from rlhf_plugin_local.backend.role_model import RoleModel

from .partitioned_model import head_modules, leave_whole
from .ranks import Ranks


class BorrowedHead:
    """Stage 3: the head, whole from the end of the layers to the end of the pass, as tensors of its own.

    In the graph of the layers tied embeddings have no shape, and autograd holds on to the one shape that it has seen.
    """

    def __init__(self, role: RoleModel) -> None:
        modules = head_modules(role)
        self._places = [
            (module, name, parameter)
            for module in modules
            for name, parameter in module.named_parameters(recurse=False)
        ]
        self.leaves: dict[nn.Parameter, nn.Parameter] = {}
        """While it is borrowed: what stands for a parameter, and has its gradient."""
        leave_whole(modules)
        graph = role.lm.whole_graph
        assert graph is not None
        graph.then = self.borrow

    def borrow(self) -> None:
        """Collect it, on all ranks."""
        parameters: list[Any] = [parameter for _, _, parameter in self._places]
        parameters[0].all_gather(param_list=parameters)
        for module, name, parameter in self._places:
            leaf = nn.Parameter(parameter.data, requires_grad=parameter.requires_grad)
            leaf.grad_dtype = torch.float32
            self.leaves[parameter] = module._parameters[name] = leaf

    def give_back(self) -> None:
        """Keep this rank's share only."""
        for module, name, parameter in self._places:
            shared: Any = parameter
            module._parameters[name] = parameter
            shared.partition()
        self.leaves.clear()


class HeadGradients:
    """Sums of the gradients that no graph has: those of what turns hidden states into results.

    Args:
        zero: DeepSpeed's optimizer.
        ranks: whose losses are added up.
        borrowed: what has the gradients at stage 3; at others the parameters do.
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
        # Tied embeddings: the layers have them too, and their gradient is the sum of both.
        self._in_graph = set(role.lm.model.base_model.parameters())
        self._sums: list[torch.Tensor | None] = [None] * len(self._head)

    def collect(self) -> None:
        """Take what a backward pass has left in ``grad``."""
        for index, parameter in enumerate(self._head):
            leaf = parameter if self._borrowed is None else self._borrowed.leaves[parameter]
            grad, leaf.grad = leaf.grad, None
            if grad is not None:
                held = self._sums[index]
                self._sums[index] = grad.float() if held is None else held.add_(grad)

    def hand_over(self) -> None:
        """Give the means over the ranks to DeepSpeed, after the last backward pass of a step and before the update."""
        totals = [total for total in self._sums if total is not None]
        assert len(totals) == len(self._head), "every pass ends in the head"
        self._ranks.sum_(totals)
        for parameter, total in zip(self._head, totals, strict=True):
            # The mean, since DeepSpeed's own are, and the losses are multiplied for that.
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
        """This rank's part of a parameter's gradient, where DeepSpeed keeps it, and the same part of ``flat``."""
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
            # Padding behind the last one is not always marked.
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
        # The last part is padded.
        return buffer.view(-1)[: len(part)], part
