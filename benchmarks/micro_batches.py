"""Seconds and memory of a training step by the size of its micro-batches.

    python benchmarks/micro_batches.py --shape 1.5b --sizes 2048 4096 8192 16384 --compile

The torch backend alone, on a GPU if there is one: forward and backward pass and optimizer over groups of random tokens,
with random weights and advantages; prompts are computed once for their samples. Each size has a backend of its own.
The fastest of the steps after the first counts. ``rlhf plan`` takes what a micro-batch costs from this table.
"""

from __future__ import annotations

import argparse
import gc
import json
import tempfile
from pathlib import Path
from typing import Any

import torch
from shapes import SHAPES, TINY, write_model
from shared_prompts import backend_of, batch_of, fastest


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--shape", default=TINY, choices=[TINY, *SHAPES])
    parser.add_argument("--sizes", type=int, nargs="+", default=[2048, 4096, 8192, 16384])
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--lengths", default="256x1024", help="prompt x response")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    rows = []
    print(f"{'size':>8}{'seconds':>10}{'tokens/s':>10}{'GiB':>8}")
    with tempfile.TemporaryDirectory() as folder:
        write_model(arguments.shape, Path(folder) / "model")
        for size in arguments.sizes:
            row = measured(arguments, Path(folder) / "model", size)
            rows.append(row)
            print(
                f"{size:>8}{row['seconds']:>10.3f}{row['tokens_per_s']:>10.0f}{row['gib']:>8.1f}",
                flush=True,
            )
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n")


def measured(arguments: argparse.Namespace, model: Path, size: int) -> dict[str, Any]:
    """Return a step's seconds, its different tokens a second, and what torch allocated at the most, in GiB."""
    arguments.micro_batch = size
    prompt, response = map(int, arguments.lengths.split("x"))
    batch, plan = batch_of(arguments, prompt, response)
    on_gpu = torch.cuda.is_available()
    backend = backend_of(model, arguments, once=True)
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    seconds = fastest({True: backend}, batch, plan, arguments.rounds)[True]
    gib = torch.cuda.max_memory_allocated() / 2**30 if on_gpu else 0.0
    backend.close()
    del backend
    gc.collect()
    if on_gpu:
        torch.cuda.empty_cache()
    tokens = arguments.prompts * (prompt + arguments.samples * response)
    return {"size": size, "seconds": seconds, "tokens_per_s": tokens / seconds, "gib": gib}


if __name__ == "__main__":
    main()
