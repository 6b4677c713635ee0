"""Seconds and GiB/s to hand a policy's weights to a vLLM engine, by each way that the machine has.

    python benchmarks/weight_sync.py --shape 1.5b --json sync.json
    python benchmarks/weight_sync.py --shape tiny --engine embedded      # without a GPU

Random weights of a published shape in bfloat16, which nobody trains: rank and engine are processes of Ray, as in a run.
With one GPU the ways are its memory (CUDA IPC) and the object store; with two also a broadcast by NCCL from one GPU to
the other. Each update ends with the engine's weights in place and its prefix cache empty; the first is given apart,
since it forms the link, and of the others the median counts. Digests of both ends are compared after the last one.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from shapes import SHAPES, TINY, write_model

TOGETHER, APART = ("policy+engine",), ("policy", "engine")
GIB = 2**30


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--shape", default="0.5b", choices=[TINY, *SHAPES])
    parser.add_argument("--engine", default="vllm", choices=["vllm", "embedded"])
    parser.add_argument("--updates", type=int, default=8)
    parser.add_argument("--bucket-mib", type=int, default=256)
    parser.add_argument("--ways", nargs="*", help="of memory, collective and store; all")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "model"
        write_model(arguments.shape, model)
        rows = [asyncio.run(measure(arguments, model, way)) for way in ways(arguments.ways)]
    print(table(rows))
    if arguments.json:
        arguments.json.write_text(
            json.dumps({"shape": arguments.shape, "rows": rows}, indent=1) + "\n"
        )


def ways(chosen: list[str] | None) -> list[str]:
    """What this machine can do: between GPUs only with two, by gloo without any."""
    import torch

    possible = ["memory", "store"]
    if torch.cuda.device_count() != 1:
        possible.insert(1, "collective")
    return [way for way in possible if not chosen or way in chosen]


async def measure(arguments: argparse.Namespace, model: Path, way: str) -> dict[str, Any]:
    """Start rank and engine, update the weights some times, compare digests, and take all down."""
    import torch

    from rlhf_core import plugins
    from rlhf_plugin_ray.config import RayRuntimeConfig
    from rlhf_plugin_ray.runtime import RayRuntime

    runtime = RayRuntime(
        RayRuntimeConfig(
            colocate=APART if way == "collective" else TOGETHER,
            weights=way,
            bucket_mib=arguments.bucket_mib,
            cpus_per={"policy": 1.0, "engine": 1.0},
            show_output=False,
        )
    )
    try:
        placement = await runtime.start(spec_of(model, arguments.engine), plugins.load())
        policy, seconds, num_bytes = placement.roles["policy"], [], 0
        for version in range(1, arguments.updates + 1):
            begin = time.perf_counter()
            sync = await placement.engine.update_weights(version, policy.weights())
            seconds.append(time.perf_counter() - begin)
            num_bytes = sync.num_bytes if sync is not None else 0
        equal = await placement.engine.checksum() == await policy.checksum()
    finally:
        await runtime.close()
    median = statistics.median(seconds[1:])
    return {
        "way": way,
        "gpus": min(torch.cuda.device_count(), 2 if way == "collective" else 1),
        "num_bytes": num_bytes,
        "first_s": seconds[0],
        "median_s": median,
        "gib_per_s": num_bytes / GIB / median,
        "digests_equal": equal,
    }


def spec_of(model: Path, engine: str) -> Any:
    """A policy that nobody trains, and an engine."""
    from rlhf_core.contracts import ComponentRef, EngineSpec, RoleSpec, RuntimeSpec

    # Nothing is generated: CUDA graphs would only be waited for.
    options = {"compile": False} if engine == "vllm" else {}
    return RuntimeSpec(
        roles={"policy": RoleSpec(role="policy", model_path=str(model), dtype="bfloat16")},
        backend=ComponentRef(kind="rlhf_train_backends", name="torch"),
        engine=ComponentRef(kind="rlhf_engines", name=engine, options=options),
        engine_spec=EngineSpec(
            model_path=str(model),
            dtype="bfloat16",
            max_length=256,
            max_concurrency=8,
            eos_token_ids=(2,),
        ),
    )


def table(rows: list[dict[str, Any]]) -> str:
    """One line for each way."""
    lines = [
        "| way | GPUs | GiB | first s | median s | GiB/s | digests |",
        "| --- |" + " --- |" * 6,
    ]
    lines += [
        f"| {row['way']} | {row['gpus']} | {row['num_bytes'] / GIB:.3f} | {row['first_s']:.3f} | {row['median_s']:.3f} "
        f"| {row['gib_per_s']:.1f} | {'equal' if row['digests_equal'] else 'DIFFERENT'} |"
        for row in rows
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
