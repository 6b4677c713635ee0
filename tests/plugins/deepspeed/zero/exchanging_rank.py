"""A rank that sums gradients of a small model with ``GradientExchange``: its number, how many, two paths."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from rlhf_plugin_deepspeed.zero.gradient_exchange import GradientExchange
from rlhf_torch.ranks.ranks import Ranks

LARGEST = 40
"""Elements of a piece: matrices are cut into several, with a rest that has not as many for every rank."""
PASSES = 3


class Partitions:
    """What ``GradientExchange`` uses of DeepSpeed's optimizer, for two parameter groups."""

    def __init__(self, model: nn.Module, rank: int, ranks: int) -> None:
        self.rank, self.averaged_gradients = rank, {}
        self._grad_acc_hooks: list[Any] = []
        self.bit16_groups = [
            [p for p in model.parameters() if p.dim() > 1],
            [p for p in model.parameters() if p.dim() == 1],
        ]
        self.bit16_groups_flat = [_flattened(group, ranks) for group in self.bit16_groups]
        self.sizes = [len(vector) // ranks for vector in self.bit16_groups_flat]

    def _build_compact_grad_partition_buffer(self, group: int) -> Any:
        return SimpleNamespace(flat_partition=torch.zeros(self.sizes[group]))


def _flattened(parameters: list[nn.Parameter], ranks: int) -> Tensor:
    """Make the parameters views of one vector, as long for every rank, and return it."""
    vector = torch.cat([p.detach().flatten() for p in parameters])
    vector = torch.cat([vector, vector.new_zeros(-len(vector) % (2 * ranks))])
    offset = 0
    for parameter in parameters:
        part = vector.narrow(0, offset, parameter.numel())
        parameter.data = part.view_as(parameter)
        offset += parameter.numel()
    return vector


def model_of(dtype: torch.dtype) -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(7, 13), nn.Tanh(), nn.Linear(13, 5), nn.Linear(5, 3))
    return model.to(dtype)


def loss_of(model: nn.Module, rank: int, number: int) -> Tensor:
    """Return the loss of a pass; the last layer has no part in the first pass of the last rank."""
    draw = torch.Generator().manual_seed(100 * rank + number)
    dtype = next(model.parameters()).dtype
    rows = torch.randn(4, 7, generator=draw).to(dtype)
    layers = model[:-1] if rank and not number else model  # type: ignore[index]
    return layers(rows).float().square().sum()


def main() -> None:
    rank, ranks, meeting, out = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=ranks)
    found = {}
    for dtype in (torch.float32, torch.bfloat16):
        model = model_of(dtype)
        zero = Partitions(model, rank, ranks)
        device = torch.device("cpu")
        exchange = GradientExchange(
            zero, dict(model.named_parameters()), Ranks(rank, ranks, device), LARGEST
        )
        exchange.start_pass()
        if rank == 0:
            loss_of(model, rank, 0).backward()  # an attempt that fails between two passes
            exchange.finish_pass()
        else:
            exchange.give_up_pass()
        exchange.forget()
        for number in range(PASSES):
            exchange.start_pass()
            loss_of(model, rank, number).backward()
            exchange.finish_pass()
        exchange.finish_update()
        exchange.close()
        found[str(dtype)] = [zero.averaged_gradients[g].flat_partition for g in range(2)]
        assert all(p.grad is None for p in model.parameters())
    torch.save(found, f"{out}/{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
