"""Seconds and GB/s of a batch through Ray's object store, packed as columns and as one object a sample, in one run.

    python benchmarks/ray_transport.py --samples 256 --tokens 1280 --ranks 2 --json

Both ways: finished trajectories from a rollout worker to the driver, and a batch from the driver to the ranks. A
receiver reads every byte that it got, since memory that is only mapped has not arrived yet. Seconds are the best of
``--repeat``.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import ray

from rlhf_core.contracts import Trajectory, TrajectoryColumns, Turn, Uid
from rlhf_plugin_ray.batches.batch_parts import rows_of
from rlhf_plugin_ray.batches.sharding import split_rows

PROMPT_SHARE = 0.2
ARRAYS = ("token_ids", "action_mask", "rollout_logprobs", "weight_version")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--samples", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=1280, help="prompt and response of each")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="print JSON only")
    arguments = parser.parse_args()
    ray.init(
        address="local",
        num_cpus=arguments.ranks + 1,
        include_dashboard=False,
        logging_level="ERROR",
        log_to_driver=False,
    )
    try:
        results = measure(arguments.samples, arguments.tokens, arguments.ranks, arguments.repeat)
    finally:
        ray.shutdown()
    print(json.dumps(results) if arguments.json else table(results))


def measure(samples: int, tokens: int, ranks: int, repeat: int) -> dict[str, Any]:
    """Return seconds and GB/s by way and form; a GB is 1e9 bytes of the arrays alone."""
    rows = [trajectory(index, tokens) for index in range(samples)]
    batch = TrajectoryColumns.from_trajectories(rows)
    row_bytes = sum(getattr(row, name).nbytes for row in rows for name in ARRAYS)
    batch_bytes = sum(value.nbytes for value in _arrays(batch))
    maker = ray.remote(Maker).remote(samples, tokens)
    readers = [ray.remote(Reader).remote() for _ in range(ranks)]
    ray.get([maker.ready.remote(), *(reader.read.remote(0) for reader in readers)])

    def from_worker(form: str) -> None:
        got = ray.get(getattr(maker, form).remote(), timeout=600)
        assert _read(got) is not None
        assert len(got) == samples

    def to_ranks(references: list[Any]) -> None:
        ray.get([r.read.remote(part) for r, part in zip(readers, references, strict=True)])

    def shards() -> None:
        dealt = split_rows(batch.num_tokens, ranks)
        to_ranks([ray.put(rows_of(batch, part)) for part in dealt])

    def naive(kind: Callable[[Trajectory], Any]) -> Callable[[], None]:
        def send() -> None:
            dealt = split_rows(batch.num_tokens, ranks)
            to_ranks([ray.put([kind(rows[i]) for i in part]) for part in dealt])

        return send

    ways: dict[str, tuple[int, Callable[[], None]]] = {
        "worker to driver, packed columns": (row_bytes, lambda: from_worker("packed")),
        "worker to driver, one object a sample": (row_bytes, lambda: from_worker("objects")),
        "worker to driver, lists of numbers": (row_bytes, lambda: from_worker("lists")),
        "driver to ranks, a shard each": (batch_bytes, shards),
        "driver to ranks, the whole batch to all": (
            batch_bytes,
            lambda: to_ranks([ray.put(batch)] * ranks),
        ),
        "driver to ranks, one object a sample": (row_bytes, naive(lambda row: row)),
        "driver to ranks, lists of numbers": (row_bytes, naive(as_lists)),
    }
    results = {}
    for name, (num_bytes, act) in ways.items():
        seconds = min(_seconds(act) for _ in range(repeat + 1))  # the first one warms up
        results[name] = {
            "seconds": seconds,
            "gb_per_s": num_bytes / seconds / 1e9,
            "bytes": num_bytes,
        }
    return {"samples": samples, "tokens": tokens, "ranks": ranks, "ways": results}


class Maker:
    """A rollout worker that has its trajectories ready."""

    def __init__(self, samples: int, tokens: int) -> None:
        self._rows = [trajectory(index, tokens) for index in range(samples)]

    def ready(self) -> None: ...

    def packed(self) -> Any:
        return TrajectoryColumns.from_trajectories(self._rows)

    def objects(self) -> Any:
        return self._rows

    def lists(self) -> Any:
        return [as_lists(row) for row in self._rows]


class Reader:
    """A rank that looks at all it gets."""

    def read(self, what: Any) -> float:
        return _read(what)


def trajectory(index: int, tokens: int) -> Trajectory:
    start = max(1, int(PROMPT_SHARE * tokens))
    actions = tokens - start
    draw = np.random.Generator(np.random.Philox(index))
    return Trajectory(
        uid=Uid(0, index),
        token_ids=draw.integers(0, 150_000, tokens, dtype=np.int32),
        action_mask=np.arange(tokens) >= start,
        rollout_logprobs=-draw.random(actions, dtype=np.float32),
        weight_version=np.zeros(actions, dtype=np.int32),
        turns=(Turn(start=start, end=tokens),),
    )


def as_lists(row: Trajectory) -> dict[str, list[float]]:
    return {name: getattr(row, name).tolist() for name in ARRAYS}


def _read(what: Any) -> float:
    """Touch every byte and return something that depends on all."""
    if isinstance(what, np.ndarray):
        return float(what.sum())
    if isinstance(what, TrajectoryColumns):
        return sum(_read(array) for array in _arrays(what))
    if isinstance(what, Trajectory):
        return sum(_read(getattr(what, name)) for name in ARRAYS)
    if isinstance(what, dict):
        return sum(sum(values) for values in what.values())
    if isinstance(what, list):
        return sum(_read(item) for item in what)
    return 0.0


def _arrays(batch: TrajectoryColumns) -> list[np.ndarray]:
    values = (getattr(batch, name) for name in batch.__dataclass_fields__)
    return [value for value in values if isinstance(value, np.ndarray)]


def _seconds(act: Callable[[], None]) -> float:
    started = time.perf_counter()
    act()
    return time.perf_counter() - started


def table(results: dict[str, Any]) -> str:
    lines = [
        f"{results['samples']} samples of {results['tokens']} tokens, {results['ranks']} ranks"
    ]
    for name, way in results["ways"].items():
        speed = f"{way['gb_per_s']:8.3f} GB/s"
        lines.append(f"{name:42} {1e3 * way['seconds']:10.2f} ms {speed} {way['bytes']:12d} B")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
