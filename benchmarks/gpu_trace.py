"""Where the time of a traced piece of work goes on a GPU: kernels by kind, what overlaps, and when the GPU is idle."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

KINDS = (
    ("exchange", ("nccl",)),
    ("matrix products", ("gemm", "cutlass", "nvjet", "xmma", "cublas")),
    ("attention", ("flash", "fmha", "sdpa", "cudnn", "attention")),
    ("copies", ("memcpy", "memset", "copy", "fill", "cat")),
    ("compiled layers", ("triton_",)),
)
"""Kinds of kernels, each with parts of the names that its kernels have; the first that fits counts."""
NAMED = 14
"""Kernels that stand in the table by name."""
Span = tuple[float, float]


@contextmanager
def traced(found: dict[str, Any]) -> Iterator[None]:
    """Trace what is done inside, and put into ``found`` what ``summary`` says of it."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as trace:
        yield
        torch.cuda.synchronize()
    kernels = [
        (event.name(), event.start_ns() / 1e9, (event.start_ns() + event.duration_ns()) / 1e9)
        for event in trace.profiler.kineto_results.events()
        if "cuda" in str(event.device_type()).lower()
    ]
    found.update(summary(kernels))


def summary(kernels: Iterable[tuple[str, float, float]]) -> dict[str, Any]:
    """Return seconds by kind and by kernel, from (name, begin, end) of each kernel.

    ``exchange alone`` is what no other kernel covers; ``idle`` is what no kernel covers between the first and the last.
    """
    kinds: dict[str, float] = defaultdict(float)
    names: dict[str, float] = defaultdict(float)
    counts: dict[str, int] = defaultdict(int)
    spans: dict[bool, list[Span]] = {True: [], False: []}
    for name, begin, end in kernels:
        kind = kind_of(name)
        kinds[kind] += end - begin
        names[name] += end - begin
        counts[name] += 1
        spans[kind == "exchange"].append((begin, end))
    every = [*spans[True], *spans[False]]
    if not every:
        return {"span_s": 0.0, "kinds": {}, "top": []}
    span = max(end for _, end in every) - min(begin for begin, _ in every)
    busy = covered(every)
    top = sorted(names, key=lambda name: -names[name])[:NAMED]
    return {
        "span_s": span,
        "idle_s": span - busy,
        "exchange_alone_s": busy - covered(spans[False]),
        "kinds": dict(kinds),
        "top": [(name, names[name], counts[name]) for name in top],
    }


def kind_of(name: str) -> str:
    """Return the kind of a kernel; ``others`` if no kind has its name."""
    low = name.lower()
    return next((kind for kind, parts in KINDS if any(part in low for part in parts)), "others")


def covered(spans: Iterable[Span]) -> float:
    """Return the seconds that at least one span covers."""
    total, reached = 0.0, float("-inf")
    for begin, end in sorted(spans):
        if end > reached:
            total += end - max(begin, reached)
            reached = end
    return total


def table(found: dict[str, Any]) -> str:
    """Return a summary as lines of text."""
    span = found["span_s"]
    rows = sorted(found["kinds"].items(), key=lambda row: -row[1])
    rows += [("exchange alone", found["exchange_alone_s"]), ("idle", found["idle_s"])]
    lines = [f"traced {span:.3f} s; seconds, share:"]
    lines += [f"  {seconds:8.3f} {seconds / span:6.1%}  {name}" for name, seconds in rows]
    lines += [
        f"  {s:8.3f} {s / span:6.1%}  {count:5} x {name[:90]}" for name, s, count in found["top"]
    ]
    return "\n".join(lines)
