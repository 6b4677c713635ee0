"""DeepSpeed's operations for DeepCompile, which are CUDA code over NCCL, written for gloo on a CPU.

Only they are replaced. What DeepSpeed does with them in Python (its graphs, passes, buffers, hooks) runs as it is, so
that tests on a CPU go through all of it. What is not here: streams, buckets, and memory that is given back.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
import torch.distributed as dist

_OTHERS = (
    "free_tensors(Tensor[] a) -> ()",
    "offload_tensor(Tensor a, int id, int id2) -> Tensor",
    "reload_tensor(Tensor a, int id, int id2) -> Tensor",
    "wait_offload(Tensor a, int id, int id2) -> Tensor",
    "wait_reload(Tensor a, int id, int id2) -> Tensor",
    "offload_parameter(Tensor a, int id, int id2) -> ()",
    "reload_parameter(Tensor a, int id, int id2) -> ()",
)


_installed: list[torch.library.Library] = []
"""What torch forgets when nobody holds it."""


class Operations:
    """What DeepSpeed calls its handle."""

    def __init__(self) -> None:
        self._gather, self._reduce = _apart(dist.all_gather_into_tensor), _apart(dist.all_reduce)
        self.cleanup()

    def init(self, group: Any, config: Any, bucket_size: int) -> None:
        self._group = group

    def cleanup(self) -> None:
        self._buffers: dict[int, tuple[torch.Tensor, int]] = {}
        self._kept: dict[int, torch.Tensor] = {}
        self._parts: dict[int, tuple[torch.Tensor, tuple[int, ...]]] = {}
        self._filled: set[int] = set()
        self._profiles, self._last, self._adds = False, True, False
        self._has_buckets = self._has_summed = False
        self._group: Any = None

    def reset(self) -> None: ...

    def register_param(
        self, number: int, shape: Any, parameter: Any, buffer: torch.Tensor, offset: int
    ) -> None:
        self._buffers[number] = (buffer.zero_(), offset)

    def update_param_grad_buffer(self, number: int, buffer: torch.Tensor, offset: int) -> None:
        self._buffers[number] = (buffer.zero_(), offset)

    def register_z3_param(
        self,
        number: int,
        shape: Any,
        part: torch.Tensor,
        buffer: torch.Tensor,
        stays: bool,
        dtype: torch.dtype | None,
    ) -> None:
        self._parts[number] = (part, tuple(shape))
        self._buffers[number] = (buffer.zero_(), dist.get_rank(self._group) * buffer.numel())

    def register_graph_z3(self, graph: int, numbers: list[int]) -> None:
        self._adds, self._has_summed = True, False

    def allgather_param(
        self, parameter: torch.Tensor, graph: int, number: int, dtype: torch.dtype | None = None
    ) -> torch.Tensor:
        part, shape = self._parts[number]
        part = part.detach().to(dtype or part.dtype).contiguous()
        whole = part.new_empty(dist.get_world_size(self._group) * part.numel())
        self._gather(whole, part, group=self._group)
        return whole[: torch.Size(shape).numel()].view(shape).clone()

    def gathered_shape(
        self, parameter: torch.Tensor, graph: int, number: int, dtype: torch.dtype | None = None
    ) -> torch.Tensor:
        part, shape = self._parts[number]
        return torch.empty(shape, dtype=dtype or part.dtype, device="meta")

    def register_graph_z1(self, graph: int, numbers: list[int]) -> None:
        self._adds = self._has_summed = False

    def register_graph_z2(self, graph: int, numbers: list[int]) -> None:
        self._adds, self._has_summed = True, False

    def enable_profiling(self, on: bool) -> None:
        self._profiles = on

    def clear_all_gathered_params(self) -> None: ...

    def start_backward(self, last: bool) -> None:
        self._last = last

    def reduce_grad(self, grad: torch.Tensor, graph: int, number: int) -> torch.Tensor:
        if not self._profiles:
            if self._adds:
                self._sum(grad, number)
            else:
                self._sum_at_last(grad, number)
        return grad.new_empty(0)

    def end_backward(self, dependencies: Any, graph: int, release: bool) -> None:
        # There are no buckets here, but DeepSpeed ends the process where it finds none.
        assert self._has_buckets or not self._has_summed, "the buckets were released"
        if release:
            self._has_buckets = False
        if not self._profiles and self._last:
            self._filled.clear()

    def _sum_at_last(self, grad: torch.Tensor, number: int) -> None:
        """Stage 1: micro-batches are added up on each rank."""
        kept = self._kept.pop(number, None)
        total = grad.clone() if kept is None else kept + grad
        if self._last:
            self._sum(total, number)
        else:
            self._kept[number] = total

    def _sum(self, grad: torch.Tensor, number: int) -> None:
        self._has_buckets = self._has_summed = True
        mean = grad.detach().clone()
        self._reduce(mean, group=self._group)
        mean /= dist.get_world_size(self._group)
        buffer, offset = self._buffers[number]
        own = mean.flatten()[offset : offset + buffer.numel()]
        buffer = buffer.view(-1)[: len(own)]  # at stage 3 the last part is padded
        if number in self._filled:
            buffer.add_(own)
        else:
            buffer.copy_(own)
        if self._adds:
            self._filled.add(number)


def _apart(collective: Callable[..., Any]) -> Callable[..., Any]:
    """Have a collective call made by a thread of its own.

    In the midst of compiling, torch calls gloo with Python's lock held, and gloo's own thread may hold the lock of its
    queue while it waits for Python's. A thread of its own knows nothing of a compiler.
    """
    thread = ThreadPoolExecutor(1)

    def call(tensor: Any, *args: Any, **options: Any) -> Any:
        # A fake tensor of one number has a real one, by which ranks compare what they measured.
        constant = getattr(tensor, "constant", None)
        real = tensor if constant is None else constant
        return thread.submit(collective, real, *args, **options).result()

    return call


def install() -> Operations:
    """Have DeepSpeed use them in this process."""
    # DeepSpeed asks which of its operations fit when it is imported.
    os.environ["DS_ACCELERATOR"] = "cpu"
    from deepspeed import comm
    from deepspeed.accelerator import get_accelerator
    from deepspeed.compile import util

    # It says "0", which is no device for torch.
    get_accelerator().current_device = lambda: "cpu"
    comm.all_reduce = _apart(comm.all_reduce)
    operations = Operations()
    library = torch.library.Library("dc", "DEF")
    _installed.append(library)
    for schema in _OTHERS:
        library.define(schema)
    gather = "(Tensor a, int graph_id, int id, ScalarType? dtype = None) -> Tensor"
    library.define("allgather_param" + gather)
    library.impl("allgather_param", operations.allgather_param, "CPU")
    library.impl("allgather_param", operations.gathered_shape, "Meta")
    library.define("wait_allgather(Tensor(a) a, int graph_id, int id) -> Tensor(a)")
    library.define("release_param(Tensor(a) a, int graph_id, int id, int n_users) -> Tensor(a)")
    for name in ("wait_allgather", "release_param"):
        for device in ("CPU", "Meta"):
            library.impl(name, lambda a, *_: a, device)
    library.define(
        "prefetch_params_fused(int graph_id, Tensor[] params, int[] ids, ScalarType[]? dtypes = None) -> ()"
    )
    library.impl("prefetch_params_fused", lambda *_: None, "CompositeExplicitAutograd")
    library.define("reduce_grad(Tensor a, int graph_id, int id) -> Tensor")
    library.define("end_backward(Any deps, int graph_id, bool release_reduce_buckets) -> ()")
    library.impl("reduce_grad", operations.reduce_grad, "CPU")
    library.impl("reduce_grad", lambda grad, *_: grad.new_empty(0), "Meta")
    library.impl("end_backward", operations.end_backward, "CompositeExplicitAutograd")
    util.dc_handle = operations
    util.is_deepcompile_supported = lambda: True
    return operations
