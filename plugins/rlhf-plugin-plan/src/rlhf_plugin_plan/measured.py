"""Measured rates, as shares of the limit. The numbers and where they come from are in measured.toml."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from .hardware import find_gpu
from .shapes import ModelShape, shape_of
from .work import sequences, training_flops

Rows = tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What ``rlhf plan`` knows from measurements."""

    source: str
    training: Mapping[tuple[bool, bool], Rows]
    """(parameters, share of the limit) by rising size; of runs that recompute or not, with layers compiled or not."""
    host_us: float
    """Of one running request and step of vLLM."""
    host_us_logprobs: float
    """More of it where log-probs are returned."""

    def training_share(
        self, shape: ModelShape, *, recompute: bool, compiled: bool = False
    ) -> float:
        """Share of the limit that forward and backward passes reach. The limit includes what is recomputed.

        What was not measured compiled counts as not compiled.
        """
        rows = self.training.get((recompute, compiled)) or self.training[recompute, False]
        return between(rows, shape.parameters)

    def host_seconds(self, requests: int, logprob_share: float) -> float:
        """Of vLLM, for that many running requests, summed over steps; a share of them returns log-probs."""
        return 1e-6 * (self.host_us + self.host_us_logprobs * logprob_share) * requests


def between(rows: Sequence[tuple[float, float]], size: float) -> float:
    """Return the value at ``size``: linear in log(size) between rows, the nearest row's outside of them."""
    below = max((row for row in rows if row[0] <= size), default=rows[0])
    above = min((row for row in rows if row[0] >= size), default=rows[-1])
    if below[0] >= above[0]:
        return below[1]
    part = math.log(size / below[0]) / math.log(above[0] / below[0])
    return below[1] + part * (above[1] - below[1])


@cache
def load() -> Measured:
    """Read the data file of this package."""
    data = tomllib.loads(files(__package__).joinpath("measured.toml").read_text(encoding="utf-8"))
    flops = find_gpu(data["gpu"]).flops("bfloat16")

    shares: dict[tuple[bool, bool], list[tuple[float, float]]] = {}
    for row in data["training"]:
        kind = row["recompute"], row.get("compiled", False)
        shares.setdefault(kind, []).append(_share(row, data["models"], flops))
    return Measured(
        source=data["source"],
        training={kind: tuple(sorted(rows)) for kind, rows in shares.items()},
        host_us=data["vllm"]["host_us_per_request"],
        host_us_logprobs=data["vllm"]["host_us_per_request_for_logprobs"],
    )


def _share(
    row: dict[str, Any], models: dict[str, dict[str, Any]], flops: float
) -> tuple[float, float]:
    shape = shape_of(models[row["model"]], row["model"])
    work = sequences(row["sequences"], row["prompt_tokens"], row["response_tokens"])
    limit = training_flops(shape, work, recompute=row["recompute"]) / flops
    return float(shape.parameters), limit / (work.tokens / row["tokens_per_second"])
