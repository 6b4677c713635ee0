"""Rules of how ranks share a model, and how many GPUs an engine has."""

from __future__ import annotations

from ...table.outcome import Outcome


def set_backend(
    out: Outcome, num_gpus: int, width: int, strategy: str, parallel: str, *, is_fsdp: bool = True
) -> str:
    """Set the backend, and return its name: FSDP has no sequence parallelism here, and one GPU needs neither.

    Args:
        num_gpus: GPUs of the trainer.
        width: ranks that compute a sequence together.
        strategy: key of the strategy.
        parallel: key of the width.
        is_fsdp: the strategy is FSDP.
    """
    backend = "fsdp" if num_gpus > 1 else "torch"
    backend = backend if is_fsdp and width <= 1 else "deepspeed"
    out.set("backend.name", backend, strategy)
    if backend == "deepspeed":
        out.set("backend.deepspeed.zero_stage", 3, strategy)
        out.set("backend.deepspeed.sequence_parallel", width, parallel)
    return backend


def set_width(out: Outcome, width: int, key: str) -> None:
    """Set the number of GPUs that an engine of its own has, where it is not one."""
    if width > 1:
        out.set("engine.vllm.args.tensor_parallel_size", width, key)
        out.set("runtime.ray.gpus_per.engine", width, key)
