"""Measured rates, as shares of the limit. measured.toml has the numbers and their origin."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from typing import Any, Literal, NamedTuple

from ..machine.hardware import find_gpu
from ..model.activations import AdaptedLayer
from ..model.adapters import AdapterCounts
from ..model.shapes import ModelShape, shape_of
from .work import Decoding, sequences, training_flops

Kind = Literal["trained", "fixed", "quantized"]
"""Weights of the model: trained themselves, or fixed beside an adapter, perhaps in fewer bits."""


class Row(NamedTuple):
    """Share of the limit that one model reached."""

    parameters: float
    share: float
    width: int
    """Numbers of a hidden state, D."""


Rows = tuple[Row, ...]
"""Rows by rising number of parameters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Rates from measurements."""

    source: str
    """Origin of the measurements, for the report."""
    training: Mapping[tuple[bool, bool, Kind], Rows]
    """Shares of the limit that training reached, by (layers recomputed, layers compiled, weights)."""
    exchange_share: float
    """Share of the link's rate that DeepSpeed's exchange reached, with what else each micro-batch costs."""
    passing_share: float
    """The same share where gradients travel while the backward pass goes on; 1 or more: some of it costs nothing."""
    layer_s: float
    """Seconds of the host for one layer in the passes of one micro-batch of training."""
    decode_share: float
    """Share of the limit that a decoding step of vLLM reaches on the GPU."""
    host_ms: float
    """Milliseconds of the host for one decoding step of vLLM, whatever runs in it."""
    host_us: float
    """Further microseconds for each request that runs in the step."""
    host_us_logprobs: float
    """Further microseconds for a request that returns log-probs."""
    captured_layer_us: float
    """Microseconds that a decoding step of the engine ``embedded`` takes for each layer beyond the limit."""

    def training_share(
        self,
        shape: ModelShape,
        *,
        recompute: bool,
        compiled: bool = False,
        weights: Kind = "trained",
    ) -> float:
        """Return the share of the limit that forward and backward passes reach; recomputing counts in the limit.

        Falls back to full training where no adapter was measured, and to layers that keep their activations where no
        recomputed ones were: the same kernels run, one pass more.

        What layers as they are take beside compiled ones is results that are written and read between products: bytes
        by the width D, where products take operations by its square. So outside of the models that were measured it is
        ``(1 / share - 1 / share compiled) D`` that is that of the nearest.
        """
        again, kind = next(
            (again, kind)
            for kind in (weights, "trained")
            for again in (recompute, False)
            if self.training.get((again, compiled, kind))
        )
        rows = self.training[again, compiled, kind]
        if compiled or rows[0].parameters <= shape.parameters <= rows[-1].parameters:
            return between(rows, shape.parameters)
        nearest = rows[0] if shape.parameters < rows[0].parameters else rows[-1]
        fused = self.training[False, True, kind]
        beside = 1 / nearest.share - 1 / between(fused, nearest.parameters)
        found = 1 / between(fused, shape.parameters) + beside * nearest.width / shape.hidden
        return 1 / found

    def training_seconds(self, passes_s: float, layers: int, micro_batches: float) -> float:
        """Return the seconds of a step's forward and backward passes, in so many micro-batches.

        The host starts the kernels of a micro-batch while the GPU computes, and each of them waits for the other at
        times: the root of the sum of squares is within 25 % of what was measured at 2048 to 32 768 tokens each.

        Args:
            passes_s: seconds of the GPU alone.
        """
        return math.hypot(passes_s, self.layer_s * layers * micro_batches)

    def decoding_seconds(self, done: Decoding, logprob_share: float) -> float:
        """Return the seconds of vLLM's decoding steps, whose next one the host prepares while the GPU computes.

        So the slower of the two counts: the host for small models and many requests, the GPU for large models.

        Args:
            done: the steps, and their seconds at the limit of the hardware.
            logprob_share: share of the requests that return log-probs, 0 to 1.
        """
        of_request = 1e-6 * (self.host_us + self.host_us_logprobs * logprob_share)
        host = 1e-3 * self.host_ms * done.steps + of_request * done.requests
        return max(host, done.seconds / self.decode_share)

    def captured_seconds(self, done: Decoding, layers: int) -> float:
        """Return the seconds of decoding steps of the engine ``embedded``: the kernels of a layer wait for each other,
        whatever they read."""
        return done.seconds + 1e-6 * self.captured_layer_us * layers * done.steps


def between(rows: Sequence[Row], size: float) -> float:
    """Return the share at ``size`` parameters: linear in log(size) between two rows, and outside of all rows the
    nearest row's."""
    below = max((row for row in rows if row.parameters <= size), default=rows[0])
    above = min((row for row in rows if row.parameters >= size), default=rows[-1])
    if below.parameters >= above.parameters:
        return below.share
    part = math.log(size / below.parameters) / math.log(above.parameters / below.parameters)
    return below.share + part * (above.share - below.share)


@cache
def load() -> Measured:
    """Return the measurements in measured.toml; the file is read once."""
    data = tomllib.loads(files(__package__).joinpath("measured.toml").read_text(encoding="utf-8"))
    flops = find_gpu(data["gpu"]).flops("bfloat16")

    shares: dict[tuple[bool, bool, Kind], list[Row]] = {}
    for row in data["training"]:
        kind = row["recompute"], row.get("compiled", False), row.get("weights", "trained")
        shares.setdefault(kind, []).append(_share(row, data["models"], flops))
    return Measured(
        source=data["source"],
        training={kind: tuple(sorted(rows)) for kind, rows in shares.items()},
        exchange_share=data["exchange"]["share"],
        passing_share=data["exchange"]["in_passing"],
        layer_s=_layer_seconds(data["micro_batches"], data["models"]),
        captured_layer_us=data["embedded"]["layer_us"],
        **data["vllm"],
    )


def _layer_seconds(rows: Sequence[dict[str, Any]], models: dict[str, dict[str, Any]]) -> float:
    """Return the mean over the models."""
    found = [
        row["seconds"] / row["number"] / shape_of(models[row["model"]], row["model"]).layers
        for row in rows
    ]
    mean: float = sum(found) / len(found)
    return mean


def _share(row: dict[str, Any], models: dict[str, dict[str, Any]], flops: float) -> Row:
    shape = shape_of(models[row["model"]], row["model"])
    work = sequences(row["sequences"], row["prompt_tokens"], row["response_tokens"])
    again = row["sequences"] - row.get("prompts", row["sequences"])
    work = replace(work, tokens=work.tokens - again * row["prompt_tokens"])
    adapter = _all_layers(shape, row["rank"]) if "rank" in row else None
    limit = training_flops(shape, work, recompute=row["recompute"], adapter=adapter) / flops
    share = limit / (work.tokens / row["tokens_per_second"])
    return Row(float(shape.parameters), share, shape.hidden)


def _all_layers(shape: ModelShape, rank: int) -> AdapterCounts:
    """Return the counts of factors beside every linear layer, on which the operations depend."""
    factors = shape.layers * int(shape.factor_weights(rank))
    layer = AdaptedLayer(first_norm=True, second_norm=True, attention=True, product=True, own=0)
    return AdapterCounts(
        name="low-rank factors",
        trained=factors,
        matrices=factors,
        added=factors,
        layers=(layer,) * shape.layers,
    )
