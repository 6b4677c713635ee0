"""The ranks of a role: joining their process group, collective sums, and the GPU of this rank."""

from __future__ import annotations

import atexit
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

from rlhf_core import ConfigError, RLHFError, StorageError
from rlhf_core.storage import FailedWrite, failed_writes_named
from rlhf_weights import form_all_locally, is_loopback, open_store, reach_store

from .leaving import leave

LOCAL_SIZE = "LOCAL_WORLD_SIZE"
"""Variable of launchers: the number of ranks on this machine."""
LOOPBACK = "127.0.0.1"
NEEDED = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
TIMEOUT = timedelta(minutes=30)
"""Time that a rank waits for the other ranks in one collective call."""
SEED_STRIDE = 1_000_003
"""Distance of the dropout seeds of neighboring ranks: more updates than a run has. Torch reads 32 bits of a seed."""
SUM_BYTES = 256 * 2**20
"""Number of bytes that are summed over ranks at once, which bounds the size of the copy made for the sum."""


class Ranks:
    """All ranks of the process group, seen from this rank; ``join`` makes it."""

    def __init__(self, rank: int, world_size: int, device: torch.device) -> None:
        self.rank = rank
        self.world_size = world_size
        self.device = device

    @property
    def is_first(self) -> bool:
        """Whether this process is rank 0."""
        return self.rank == 0

    def dropout_seed(self, seed: int) -> int:
        """Return the seed of an adapter's dropout: another one on each rank, the given one on the first."""
        return seed + self.rank * SEED_STRIDE

    def largest(self, number: int) -> int:
        """Return the largest ``number`` of any rank; a collective call."""
        if self.world_size == 1:
            return number
        tensor = torch.tensor(number, dtype=torch.int64, device=self.device)
        dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
        return int(tensor)

    def total(self, number: int) -> int:
        """Return the sum of the ``number`` of all ranks; a collective call."""
        if self.world_size == 1:
            return number
        tensor = torch.tensor(number, dtype=torch.int64, device=self.device)
        dist.all_reduce(tensor)
        return int(tensor)

    def sum_(self, tensors: list[Tensor]) -> None:
        """Replace each tensor by its sum over ranks, in place; a collective call."""
        if self.world_size == 1:
            return
        waiting: list[Tensor] = []
        size = 0
        for tensor in tensors:
            if waiting and size + tensor.nbytes > SUM_BYTES:
                _sum_together(waiting)
                waiting, size = [], 0
            waiting.append(tensor)
            size += tensor.nbytes
        if waiting:
            _sum_together(waiting)

    @contextmanager
    def together(self) -> Iterator[None]:
        """Return a context that ends on all ranks in the same way; a collective call, with none inside of it.

        Where a rank raises alone, the others would wait for it in their next collective call.

        Raises:
            Exception: what this rank raised.
            StorageError: another rank raised it; the message has its error.
            RLHFError: another rank raised something else; the message has its error.
        """
        failure: Exception | None = None
        try:
            yield
        except Exception as error:
            failure = error
        # The lowest rank that raised has the largest number, which is odd for a StorageError.
        own = 0 if failure is None else 2 * (self.world_size - self.rank)
        ahead, is_storage = divmod(self.largest(own + isinstance(failure, StorageError)), 2)
        first = self.world_size - ahead
        if failure is not None:
            self._tell(f"{type(failure).__name__}: {failure}", first)
            raise failure
        if first < self.world_size:
            kind = FailedWrite if is_storage else RLHFError
            raise kind(f"rank {first} of this role failed: {self._tell('', first)}")

    @contextmanager
    def writing_together(self) -> Iterator[None]:
        """Return the context ``together`` for a body that writes files.

        Raises:
            Exception: what ``together`` raises.
            StorageError: this rank or another one could not write.
        """
        with self.together(), failed_writes_named():
            yield

    def _tell(self, text: str, teller: int) -> str:
        """Return the text of the rank ``teller``; a collective call."""
        if self.world_size == 1:
            return text
        encoded = list(text.encode()) if self.rank == teller else []
        numbers = torch.zeros(self.largest(len(encoded)), dtype=torch.int32, device=self.device)
        numbers[: len(encoded)] = torch.tensor(encoded, dtype=torch.int32, device=self.device)
        dist.all_reduce(numbers)
        return bytes(numbers.tolist()).decode()

    def wait(self) -> None:
        """Return once all ranks have made this call."""
        if self.world_size > 1:
            dist.barrier()


def join(device: torch.device) -> Ranks:
    """Join the process group that the environment describes, by NCCL on a GPU and gloo on a CPU.

    A process whose environment names no other ranks is the only rank. An existing process group is used as it is. A
    new process group lives as long as this process, because DeepSpeed keeps using it.

    Raises:
        ConfigError: the environment has only some of the variables in ``NEEDED``.
    """
    if not dist.is_initialized():
        backend = "nccl" if device.type == "cuda" else "gloo"
        given = [name for name in NEEDED if name in os.environ]
        # A process that is its only rank sets LOCAL_RANK below, and the processes that it starts inherit the variable.
        if given == ["LOCAL_RANK"]:
            given = []
        if given and (missing := [name for name in NEEDED if name not in os.environ]):
            raise ConfigError(
                f"the environment has {', '.join(given)} but lacks {', '.join(missing)}; start the ranks with a "
                "launcher that sets all of them, or set none of them for a single process",
                code="ranks/incomplete-environment",
            )
        if given:
            _join_others(backend)
        else:
            form_all_locally()
            store = dist.HashStore()  # type: ignore[attr-defined]  # absent from torch's stubs
            dist.init_process_group(backend, store=store, rank=0, world_size=1)
        atexit.register(leave)
    # DeepSpeed requires the variable, and no launcher has set it for a single process.
    os.environ.setdefault("LOCAL_RANK", "0")
    return Ranks(dist.get_rank(), dist.get_world_size(), device)


def _join_others(backend: str) -> None:
    """Join the process group of the environment's ranks; nothing of ranks of one machine is open to its other users."""
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    # A launcher such as torchrun names the machine by an address that others reach, and its own store is open to them.
    if os.environ.get(LOCAL_SIZE) == os.environ["WORLD_SIZE"]:
        host = LOOPBACK
    if not is_loopback(host):
        dist.init_process_group(backend, timeout=TIMEOUT)
        return
    form_all_locally()
    try:
        store = (open_store if rank == 0 else reach_store)(host, port, TIMEOUT)
    except OSError as error:
        raise ConfigError(
            f"rank {rank} expected to meet {size - 1} other ranks of this machine by MASTER_PORT {port}: {error}. "
            "Give the ranks another MASTER_PORT",
            code="ranks/not-met",
        ) from error
    store.set(f"here/{rank}", "1")
    if rank == 0:
        for other in range(size):
            store.get(f"here/{other}")
    store.close()  # All who shall have the store have it.
    dist.init_process_group(
        backend, store=store.torchs, rank=rank, world_size=size, timeout=TIMEOUT
    )


def own_device(wanted: torch.device) -> torch.device:
    """Return this rank's device and make it torch's current one: GPU number LOCAL_RANK, or the only visible GPU.

    Raises:
        ConfigError: the process sees several GPUs, but not as many as LOCAL_RANK needs.
    """
    if wanted.type != "cuda":
        return wanted
    local = int(os.environ.get("LOCAL_RANK", "0"))
    count = torch.cuda.device_count()
    if local >= count and count != 1:
        raise ConfigError(
            f"LOCAL_RANK is {local}, but this process sees {count} GPUs; start at most one rank per visible GPU, or "
            "make more GPUs visible with CUDA_VISIBLE_DEVICES",
            code="gpu/too-few",
        )
    device = torch.device("cuda", local if local < count else 0)
    torch.cuda.set_device(device)
    return device


def _sum_together(tensors: list[Tensor]) -> None:
    flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
    dist.all_reduce(flat)
    parts = torch.split(flat, [tensor.numel() for tensor in tensors])
    for tensor, part in zip(tensors, parts, strict=True):
        tensor.copy_(part.view_as(tensor))
