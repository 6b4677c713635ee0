"""Rules of the backend, which is DeepSpeed in all programs."""

from __future__ import annotations

from ...table.outcome import Outcome
from ...table.source import SourceOptions


def set_backend(source: SourceOptions, out: Outcome) -> None:
    """Set the backend with its ways to share a model among ranks, and the weights' type."""
    out.set("backend.name", "deepspeed")
    out.set("model.dtype", "bfloat16", "ds.param_dtype", "bf16")
    if source.text("ds.param_dtype") == "fp16":
        out.differs(
            "ds.param_dtype",
            "there is no float16: weights are bfloat16",
        )
    ring = source.whole("ds.ring_attn_size")
    out.set("backend.deepspeed.sequence_parallel", ring, "ds.ring_attn_size")
    if ring > 1:
        out.differs(
            "ds.ring_attn_size",
            "ranks trade tokens for heads (Ulysses) in place of a ring, so the number divides the model's heads",
        )
    out.nothing("ds.ring_attn_head_stride", "there is no ring, so heads are not passed on in parts")
    hpz = source.whole("ds.zpg")
    if hpz > 1:
        out.set("backend.deepspeed.args.zero_optimization.zero_hpz_partition_size", hpz, "ds.zpg")
    else:
        out.nothing("ds.zpg", "1 is off")
