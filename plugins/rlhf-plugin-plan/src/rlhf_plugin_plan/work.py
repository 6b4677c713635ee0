"""Operations and bytes of a step's phases: what no implementation of this model in this precision avoids.

P prompt tokens, R response tokens, S = P + R, L layers, Q width of all queries, K of all keys. A pair is a query and a
key that it looks at; its score and its value take ``4 Q`` operations a layer. Rates are of ``hardware``.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass

from .shapes import ModelShape


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """Of one pass over whole sequences."""

    tokens: int
    pairs: int
    head_tokens: int
    """Positions at which the output head is applied."""


def sequences(num: int, prompt: int, response: int) -> Tokens:
    """Return the work of ``num`` sequences of P + R tokens: ``S (S + 1) / 2`` pairs each, the head at responses."""
    length = prompt + response
    return Tokens(
        tokens=num * length,
        pairs=num * (length * (length + 1) // 2),
        head_tokens=num * response,
    )


def prompts(num: int, prompt: int) -> Tokens:
    """Return the work of prefilling ``num`` prompts; the head is applied to the last token of each."""
    return Tokens(tokens=num * prompt, pairs=num * (prompt * (prompt + 1) // 2), head_tokens=num)


def attention_flops(shape: ModelShape, pairs: int) -> int:
    """``4 Q L`` for each pair."""
    return 4 * shape.query_width * shape.layers * pairs


def forward_flops(shape: ModelShape, work: Tokens, *, head: bool = True) -> int:
    """``2 N_layers`` a token, ``4 Q L`` a pair, ``2 N_head`` a position of the head."""
    flops = 2 * shape.layer_weights * work.tokens + attention_flops(shape, work.pairs)
    return flops + (2 * shape.head_weights * work.head_tokens if head else 0)


def training_flops(
    shape: ModelShape, work: Tokens, *, head: bool = True, recompute: bool = False
) -> float:
    """Three times the forward pass, as attention's backward pass takes 2.5 times its forward pass half of that more;
    with ``recompute`` the layers once more."""
    flops = 3 * forward_flops(shape, work, head=head) + 0.5 * attention_flops(shape, work.pairs)
    if recompute:
        flops += forward_flops(shape, work, head=False)
    return flops


def matrix_exchange_bytes(shape: ModelShape, tokens: float, ranks: int, width: int) -> float:
    """Bytes that one of T ranks sends in a forward pass over ``tokens``, when they share every matrix.

    ``4 L D (T - 1) / T`` numbers a token: a layer sums two arrays of hidden states over the ranks, and a sum sends
    ``2 (T - 1) / T`` of one. A backward pass sends as much.

    Source: Shoeybi et al. 2019 (Megatron-LM), arXiv:1909.08053, section 3; Korthikanti et al. 2022, arXiv:2205.05198.

    Args:
        width: bytes of one number.
    """
    return 4 * shape.layers * shape.hidden * tokens * width * (ranks - 1) / ranks


def head_exchange_bytes(shape: ModelShape, tokens: float, ranks: int, width: int) -> float:
    """Bytes that one of T ranks receives in a forward pass where the head is shared too.

    ``V (T - 1) / T`` logits a token, since each rank needs all of them; nothing where the head is the embedding table,
    which is whole.

    Args:
        tokens: at which the head is applied.
        width: bytes of one number.
    """
    return 0.0 if shape.tied else shape.vocab * tokens * width * (ranks - 1) / ranks


def slice_exchange_bytes(shape: ModelShape, tokens: float, ranks: int, width: int) -> float:
    """Bytes that one of S ranks sends in a forward pass over its ``tokens``, when each has a slice of every sequence.

    ``L (2 Q + 2 K) (S - 1) / S`` numbers a token: queries, keys, values and outputs change places between slices and
    heads. K counts the copies of keys where there are fewer key heads than ranks. A backward pass sends as much.

    Source: Jacobs et al. 2023 (DeepSpeed-Ulysses), arXiv:2309.14509, section 3.2.

    Args:
        tokens: of one rank's slices.
        width: bytes of one number.
    """
    keys = math.lcm(shape.kv_heads, ranks) * shape.head_dim
    return 2 * shape.layers * (shape.query_width + keys) * tokens * width * (ranks - 1) / ranks


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoding:
    """What one engine does to write its responses."""

    seconds: float
    """At the limit."""
    steps: int
    requests: int
    """Sum over steps of the sequences decoded: what a host has to keep books of."""
    peak_tokens: int
    """In the KV cache at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRates:
    """Of one engine: all its GPUs together."""

    flops: float
    """Per second."""
    bandwidth: float
    """Bytes per second."""
    weight_bytes: int
    """Of one weight."""
    kv_token_bytes: float
    """Of one token in the KV cache."""


def decode_step_seconds(shape: ModelShape, batch: int, rates: EngineRates) -> float:
    """Seconds of the matmuls of one step: every weight is read, and multiplied for each sequence."""
    weights = shape.layer_weights + shape.head_weights
    return max(rates.weight_bytes * weights / rates.bandwidth, 2 * weights * batch / rates.flops)


def decode(
    shape: ModelShape, responses: Sequence[int], prompt: int, cap: int, rates: EngineRates
) -> Decoding:
    """Return the work of an engine that decodes at most ``cap`` sequences together and fills places as they end.

    A response of R tokens takes R - 1 steps, since prefilling gives its first token. In its step j a sequence reads the
    keys and values of P + j tokens and writes one; weights and keys are read by different kernels, so their times
    add. Between two ends the batch stays the same, so a stretch of steps is one sum.
    """
    waiting = [length - 1 for length in reversed(responses) if length > 1]
    running: list[tuple[int, int]] = []  # (step at which it ends, step at which it began)
    step = requests = peak = 0
    seconds = 0.0
    while waiting or running:
        while waiting and len(running) < cap:
            heapq.heappush(running, (step + waiting.pop(), step))
        batch = len(running)
        stretch = running[0][0] - step
        first = sum(prompt + step - begun + 1 for _, begun in running)
        read = stretch * first + batch * stretch * (stretch - 1) // 2
        peak = max(peak, first + batch * (stretch - 1))
        seconds += stretch * decode_step_seconds(shape, batch, rates) + max(
            rates.kv_token_bytes * (read + stretch * batch) / rates.bandwidth,
            attention_flops(shape, read) / rates.flops,
        )
        requests += stretch * batch
        step += stretch
        while running and running[0][0] <= step:
            heapq.heappop(running)
    return Decoding(seconds=seconds, steps=step, requests=requests, peak_tokens=peak)


def optimizer_bytes(parameters: float, traffic: float) -> float:
    """Bytes of GPU memory that one update of ``parameters`` moves."""
    return parameters * traffic


def gradient_bytes(
    weight_bytes: float, ranks: int, stage: int, micro_batches: int, gradient_bytes: float
) -> float:
    """Bytes that one rank sends for one update.

    ``(N - 1) / N`` of all gradients once (reduce-scatter) and of all weights once (all-gather); below stage 2 gradients
    are summed once a step, from stage 2 for every micro-batch; stage 3 collects the weights twice for each.
    """
    if ranks == 1:
        return 0.0
    share = (ranks - 1) / ranks
    if stage == 0:
        return 2 * gradient_bytes * share
    gradients = gradient_bytes * (micro_batches if stage >= 2 else 1)
    weights = weight_bytes * (2 * micro_batches if stage == 3 else 1)
    return (gradients + weights) * share
