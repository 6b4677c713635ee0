"""Operations and bytes of a step's phases that no implementation of this model in this precision can avoid.

P prompt tokens, R response tokens, S = P + R, L layers, D hidden width, V vocabulary, Q width of all queries, K width
of all keys. A *pair* is a query and a key that the query attends to; its logit and its value take ``4 Q`` operations in
a layer.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass

from ..model.adapters import AdapterCounts
from ..model.shapes import ModelShape


@dataclass(frozen=True, slots=True, kw_only=True)
class PassTokens:
    """Size of the work of one pass over whole sequences."""

    tokens: int
    """Number of tokens that the layers compute."""
    pairs: int
    """Number of pairs of a query and a key, in one layer."""
    head_tokens: int
    """Number of positions at which the output head is applied."""
    images: int = 0
    """Number of images whose pixels are read."""
    image_tokens: int = 0
    """Number of features of one image."""


def sequences(num: int, prompt: int, response: int) -> PassTokens:
    """Return the work of ``num`` sequences of P + R tokens: ``S (S + 1) / 2`` pairs each, the head at responses."""
    length = prompt + response
    return PassTokens(
        tokens=num * length, pairs=num * (length * (length + 1) // 2), head_tokens=num * response
    )


def prompts(num: int, prompt: int) -> PassTokens:
    """Return the work of prefilling ``num`` prompts; the head is applied to the last token of each."""
    return PassTokens(
        tokens=num * prompt, pairs=num * (prompt * (prompt + 1) // 2), head_tokens=num
    )


def attention_flops(shape: ModelShape, pairs: int) -> int:
    """Return the operations of attention: ``4 Q L`` for each pair, where L are layers with attention."""
    return 4 * shape.pair_numbers * pairs


def state_flops(shape: ModelShape, tokens: int) -> int:
    """Return the operations of the states in layers of linear attention; 0 without such."""
    if shape.recurrent is None:
        return 0
    return len(shape.recurrent.layers) * shape.recurrent.flops * tokens


def forward_flops(
    shape: ModelShape, work: PassTokens, *, head: bool = True, adapter: AdapterCounts | None = None
) -> int:
    """Return the operations of a forward pass.

    ``2 N_layers`` for each token, ``4 Q L`` for each pair, ``2 N_head`` for each position of the head, where N_layers
    and N_head are the numbers of weights of the layers and of the head; of experts those of one token. An adapter's own
    weights count like those of the layers. A vision tower reads each image once.
    """
    return _text_flops(shape, work, head=head, adapter=adapter) + tower_flops(shape, work)


def tower_flops(shape: ModelShape, work: PassTokens) -> int:
    """Return the operations of a forward pass of the vision tower; 0 without one."""
    return 0 if shape.vision is None else work.images * shape.vision.flops(work.image_tokens)


def _text_flops(
    shape: ModelShape, work: PassTokens, *, head: bool = True, adapter: AdapterCounts | None = None
) -> int:
    weights = shape.active_weights + (adapter.added if adapter else 0)
    flops = 2 * weights * work.tokens + attention_flops(shape, work.pairs)
    flops += state_flops(shape, work.tokens)
    return flops + (2 * shape.head_weights * work.head_tokens if head else 0)


def training_flops(
    shape: ModelShape,
    work: PassTokens,
    *,
    head: bool = True,
    recompute: bool = False,
    adapter: AdapterCounts | None = None,
    frozen_tower: bool = False,
) -> float:
    """Return the operations of a forward and a backward pass.

    A backward pass takes twice the operations of its forward pass, and for attention 2.5 times. With ``recompute`` the
    layers' forward pass counts twice.

    Under an adapter a fixed weight has no gradient, so its backward pass takes as much as its forward pass: ``4`` for
    each fixed weight and token, the output head's included, and ``6`` for each weight of the adapter. Layers below the
    first adapted one have no backward pass; neither has a frozen vision tower, which is never recomputed.
    """
    fixed_tower = 1 if frozen_tower else 2
    if adapter is not None:
        text = _adapted_training_flops(shape, work, adapter, head=head, recompute=recompute)
        return text + fixed_tower * tower_flops(shape, work)
    flops = 3 * _text_flops(shape, work, head=head) + 0.5 * attention_flops(shape, work.pairs)
    if recompute:
        flops += _text_flops(shape, work, head=False)
    return flops + (1 if frozen_tower else 3) * tower_flops(shape, work)


def _adapted_training_flops(
    shape: ModelShape, work: PassTokens, adapter: AdapterCounts, *, head: bool, recompute: bool
) -> float:
    share = len(adapter.layers) / shape.layers  # of the layers that gradients flow through
    attention = attention_flops(shape, work.pairs)
    flops = _text_flops(shape, work, head=head, adapter=adapter)
    fixed = 2 * shape.active_weights * work.tokens + 2 * state_flops(shape, work.tokens)
    flops_back = share * (fixed + 2.5 * attention)
    flops_back += 2 * (adapter.added + adapter.matrices) * work.tokens
    flops_back += 2 * (shape.head_weights + adapter.head) * work.head_tokens if head else 0
    if recompute:
        flops += _text_flops(shape, work, head=False, adapter=adapter)
    return flops + flops_back


def matrix_exchange_bytes(shape: ModelShape, tokens: float, ranks: int, width: int) -> float:
    """Return the bytes that one of T ranks sends in a forward pass over ``tokens``, if the ranks share every matrix.

    ``4 L D (T - 1) / T`` numbers for each token: a layer sums two arrays of hidden states over the ranks, and each sum
    sends ``2 (T - 1) / T`` times the array. A backward pass sends as much.

    Source: Shoeybi et al. 2019 (Megatron-LM), arXiv:1909.08053, section 3; Korthikanti et al. 2022, arXiv:2205.05198.

    Args:
        width: bytes of one number.
    """
    return 4 * shape.layers * shape.hidden * tokens * width * (ranks - 1) / ranks


def head_exchange_bytes(shape: ModelShape, tokens: float, ranks: int, width: int) -> float:
    """Return the bytes that one of T ranks receives in a forward pass if the ranks share the head too.

    ``V (T - 1) / T`` logits for each token, since every rank needs all logits; 0 for a tied head, because embeddings
    are whole on every rank.

    Args:
        tokens: number of tokens at which the head is applied.
        width: bytes of one number.
    """
    return 0.0 if shape.tied else shape.vocab * tokens * width * (ranks - 1) / ranks


def slice_exchange_bytes(shape: ModelShape, tokens: float, ranks: int, width: int) -> float:
    """Return the bytes that one of N ranks sends in a forward pass, if each rank has a slice of every sequence.

    ``L (2 Q + 2 K) (N - 1) / N`` numbers for each of the rank's tokens: queries, keys, values and outputs are exchanged
    between slices and heads. With fewer key heads than ranks K includes the copies of keys. A backward pass sends as
    much.

    Source: Jacobs et al. 2023 (DeepSpeed-Ulysses), arXiv:2309.14509, section 3.2.

    Args:
        tokens: number of tokens of one rank's slices.
        width: bytes of one number.
    """
    keys = math.lcm(shape.kv_heads, ranks) * shape.head_dim
    return 2 * shape.layers * (shape.query_width + keys) * tokens * width * (ranks - 1) / ranks


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoding:
    """Work of one engine that decodes its responses. A *decoding step* gives every running sequence one token."""

    seconds: float
    steps: int
    requests: int
    """Number of running sequences, summed over decoding steps; the host's time grows with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRates:
    """Rates of one engine, summed over its GPUs, and its widths."""

    flops: float
    """Operations per second."""
    bandwidth: float
    """Bytes per second of GPU memory."""
    weight_bytes: float
    """Bytes of one weight, on average."""
    kv_token_bytes: float
    """Bytes of one token in the KV cache."""


def decode_step_seconds(shape: ModelShape, batch: int, rates: EngineRates) -> float:
    """Return the seconds of the matmuls of one decoding step, which reads every weight once for all sequences, of
    experts those that some sequence chooses, and in which each sequence's states are read and written."""
    read = rates.weight_bytes * (shape.read_weights(batch) + shape.head_weights)
    read += 2 * batch * shape.state_bytes(round(rates.weight_bytes))
    weights = shape.active_weights + shape.head_weights
    flops = 2 * weights * batch + state_flops(shape, batch)
    return max(read / rates.bandwidth, flops / rates.flops)


def decode(
    shape: ModelShape, responses: Sequence[int], prompt: int, cap: int, rates: EngineRates
) -> Decoding:
    """Return the work of an engine that decodes at most ``cap`` sequences together and replaces each that ends.

    A response of R tokens takes R - 1 decoding steps, since prefilling gives its first token. In its step j a sequence
    reads the keys and values of P + j tokens and writes those of one. Different kernels read weights and keys, so their
    times add up. Between two ends of sequences the batch stays the same, so a stretch of steps is one sum.

    Args:
        responses: number of tokens of each response.
        prompt: number of tokens of each prompt, P.
        cap: largest number of sequences that are decoded together.
    """
    waiting = [length - 1 for length in reversed(responses) if length > 1]
    running: list[tuple[int, int]] = []  # heap of (step at which a sequence ends, its first step)
    step = requests = 0
    seconds = 0.0
    while waiting or running:
        while waiting and len(running) < cap:
            heapq.heappush(running, (step + waiting.pop(), step))
        batch = len(running)
        stretch = running[0][0] - step
        first = sum(prompt + step - begun + 1 for _, begun in running)
        read = stretch * first + batch * stretch * (stretch - 1) // 2
        seconds += stretch * decode_step_seconds(shape, batch, rates) + max(
            rates.kv_token_bytes * (read + stretch * batch) / rates.bandwidth,
            attention_flops(shape, read) / rates.flops,
        )
        requests += stretch * batch
        step += stretch
        while running and running[0][0] <= step:
            heapq.heappop(running)
    return Decoding(seconds=seconds, steps=step, requests=requests)


def gradient_bytes(
    weight_bytes: float,
    ranks: int,
    stage: int,
    micro_batches: int,
    gradient_bytes: float,
    traveling_bytes: float | None = None,
) -> float:
    """Return the bytes that one of N ranks sends for one update.

    A reduce-scatter sends ``(N - 1) / N`` of the gradients, an all-gather ``(N - 1) / N`` of the weights. Stages 0 and
    1 sum gradients once per update, stages 2 and 3 once per micro-batch. Stages 1 and 2 collect weights once per
    update, stage 3 twice per micro-batch; stage 0 collects none, but sums gradients by an all-reduce, which sends them
    twice.

    Args:
        weight_bytes: bytes of all weights.
        gradient_bytes: bytes of all gradients in float32.
        traveling_bytes: bytes of all gradients as ranks exchange them for each micro-batch, if they then send the sum
            in float32 once more, to the ranks that update it; None: they exchange the former.
    """
    if ranks == 1:
        return 0.0
    share = (ranks - 1) / ranks
    if stage == 0:
        return 2 * gradient_bytes * share
    if traveling_bytes is not None:
        return (micro_batches * traveling_bytes + gradient_bytes + weight_bytes) * share
    gradients = gradient_bytes * (micro_batches if stage >= 2 else 1)
    weights = weight_bytes * (2 * micro_batches if stage == 3 else 1)
    return (gradients + weights) * share
