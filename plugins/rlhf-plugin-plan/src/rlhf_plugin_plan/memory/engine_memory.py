"""GPU memory of one engine: weights, KV cache, activations and fixed allowances."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from ..machine import assumptions as assumed
from ..machine.hardware import GIB, GpuSpec
from ..model.shapes import ModelShape

BYTES = {"float32": 4, "bfloat16": 2}
"""Bytes of one number, by type."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmMemoryOptions:
    """Options of the engine ``vllm`` on which its memory depends; all but ``data_parallel`` are those of one copy."""

    memory_share: float
    """Share of the GPU's memory that vLLM may fill, 0 to 1."""
    kv_cache_gib: float | None
    """Size of the KV cache on one GPU in GiB; None: the rest of vLLM's share."""
    sleep_level: int = 1
    """Level of sleep: 1 copies the weights to host memory, 2 drops them."""
    bucket_mib: int
    """Size of one bucket of weights in MiB."""
    tensor_parallel: int
    """Number of GPUs that share every matrix."""
    pipeline_parallel: int
    data_parallel: int = 1
    """Number of copies of the model, each with a separate KV cache."""
    batched_tokens: int = assumed.ENGINE_BATCHED_TOKENS
    """Largest number of tokens of one pass."""
    graphs: bool
    """Whether vLLM captures CUDA graphs."""
    max_sequences: int
    """Largest number of sequences that are decoded together."""
    kv_width: float
    """Bytes of one number in the KV cache."""
    adapter_rank: int | None = None
    """Rank of the adapter that vLLM serves beside the weights; None: it gets whole weights."""
    adapter_slots: int = assumed.ADAPTER_SLOTS
    """Number of versions of the adapter with which vLLM computes at once."""
    adapter_versions: int = 2
    """Number of versions of the adapter whose factors vLLM's workers keep: the newest, the one before, and older
    ones in use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineMemory:
    """Memory of one engine on one of its GPUs."""

    parts: Mapping[str, float]
    """Bytes of each part, by its name in the report."""
    kv_tokens: int
    """Number of tokens that fit in the KV cache of one copy of the model, over all GPUs of the copy."""
    in_trainer: Mapping[str, float]
    """Bytes that the trainer's process needs for the engine, by name."""

    @property
    def peak_bytes(self) -> float:
        """Bytes of all parts."""
        return sum(self.parts.values())


def kv_bytes(shape: ModelShape, width: float) -> float:
    """Return the bytes of one token in the KV cache: ``2 L K`` numbers of ``width`` bytes in layers with attention."""
    return shape.kv_numbers * width


def stage_parameters(shape: ModelShape, stages: int) -> float:
    """Return the number of parameters of the largest of P pipeline stages.

    A stage has ``ceil(L / P)`` layers. Of several stages the first also has the embeddings, and the last the norm and
    the head.
    """
    if stages == 1:
        return shape.parameters
    layers = shape.layer_parameters * _layers(shape, stages) / shape.layers
    return layers + shape.hidden + shape.head_weights


def _layers(shape: ModelShape, stages: int) -> int:
    return -(-shape.layers // stages)


def vllm_memory(
    shape: ModelShape, dtype: str, engine: VllmMemoryOptions, gpu: GpuSpec, factors: int = 0
) -> EngineMemory:
    """Return the memory of vLLM on one GPU.

    Without ``kv_cache_gib`` vLLM fills its share of the GPU, for any model: the KV cache gets the rest of the share. A
    KV cache of 0 tokens means that weights and activations already fill the share.

    Args:
        factors: number of weights in the factors of an adapter that vLLM serves.
    """
    split = engine.tensor_parallel * engine.pipeline_parallel
    weights = (
        BYTES[dtype] * stage_parameters(shape, engine.pipeline_parallel) / engine.tensor_parallel
    )
    activations = _activations(shape, dtype, engine)
    slots = adapter_slots(shape, dtype, engine)
    states = float(engine.max_sequences * shape.state_bytes(BYTES[dtype])) / split
    if engine.kv_cache_gib is None:
        share = engine.memory_share * gpu.memory
        cache = max(0.0, share - weights - slots - states - activations - assumed.CONTEXT)
    else:
        cache = engine.kv_cache_gib * GIB
    parts = {
        "weights": weights,
        "KV cache": cache,
        "activations": activations,
        "CUDA context": assumed.CONTEXT,
    }
    if states:
        parts["states of linear attention"] = states
    if engine.adapter_rank is not None:
        parts["slots for adapters"] = slots
        # A worker keeps all factors as they came, whatever its share of the matrices.
        parts["versions of the adapter"] = float(BYTES[dtype] * factors * engine.adapter_versions)
    if engine.graphs:
        parts["CUDA graphs"] = assumed.ENGINE_GRAPHS
    if split > 1:
        parts["collectives"] = assumed.COLLECTIVES
    table = 0 if engine.adapter_rank is not None else BYTES[dtype] * shape.head_weights
    bucket = max(engine.bucket_mib * assumed.MIB, table)
    # The pipeline stage with the most layers has the most bytes per token, so its cache is full first.
    token = (
        kv_bytes(shape, engine.kv_width) * _layers(shape, engine.pipeline_parallel) / shape.layers
    )
    return EngineMemory(
        parts=parts,
        kv_tokens=int(cache * min(engine.tensor_parallel, shape.kv_heads) / token),
        in_trainer={"bucket for the engine's weights": float(bucket)},
    )


def adapter_slots(shape: ModelShape, dtype: str, engine: VllmMemoryOptions) -> float:
    """Return the bytes of vLLM's matrices for adapters on one GPU; 0 without an adapter.

    Each slot has factors of every linear layer, adapted or not, at the next rank for which vLLM makes room. Slots of
    embeddings and output head, which some families have, are not counted.
    """
    if engine.adapter_rank is None:
        return 0.0
    rank = min(
        (room for room in assumed.ADAPTER_RANKS if room >= engine.adapter_rank),
        default=engine.adapter_rank,
    )
    each = _layers(shape, engine.pipeline_parallel) * shape.factor_weights(
        rank, engine.tensor_parallel
    )
    return BYTES[dtype] * engine.adapter_slots * each


def embedded_memory(
    shape: ModelShape,
    dtype: str,
    compute: str,
    *,
    slots: int,
    length: int,
    copies_weights: bool,
    cache_bytes: float | None = None,
    joins: bool = False,
    conversations: int = 0,
    prefill_tokens: int | None = None,
    copies_rest: bool = False,
) -> EngineMemory:
    """Return the memory of the embedded engine: a KV cache with room for each slot, and cast, joined or copied weights.

    Args:
        dtype: type of the trained weights.
        compute: type of the matmuls; other than ``dtype``, the engine keeps casts of the weights.
        slots: number of sequences that are decoded together.
        length: number of tokens of the longest sequence.
        copies_weights: the engine has weights of its own instead of the trainer's.
        cache_bytes: largest size of the KV cache of sequences that stay on the device; None: each token is a step of
            the host's.
        joins: layers that read the same input have a joined copy of their weights, where sequences stay on the device.
        conversations: number of conversations of several turns in flight. Those that wait for their next turn keep
            their pages there, and the state behind them. 0: episodes have one turn.
        prefill_tokens: number of tokens of a prefill pass beside training, whose activations come on top of the
            roles'; None: engine and roles compute in turns.
        copies_rest: beside training the weights that are neither cast nor joined are copied; under an adapter they do
            not change.
    """
    width = BYTES[compute]
    token = kv_bytes(shape, width)
    tokens = slots * length * assumed.CACHE_GROWTH
    joined = graphs = waiting = 0.0
    if cache_bytes is not None:
        page = assumed.CACHE_PAGE * token
        pages, room = -(-length // assumed.CACHE_PAGE), cache_bytes // page
        state = math.ceil(shape.state_bytes(width) / page)
        served = min(slots * pages, room)
        tokens = served * assumed.CACHE_PAGE
        waiting = max(0, min(conversations * (pages + state), room) - served) * page
        graphs = assumed.EMBEDDED_GRAPHS
        if joins and compute == dtype:
            joined = float(width * shape.joined_weights)
    casts = 0.0
    if compute != dtype:
        # A tied head is cast too: the linear layer then holds a bfloat16 copy beside the float32 embedding.
        casts = float(width * (shape.linear_weights + shape.head_weights))
    rest = prefill = 0.0
    if prefill_tokens is not None:
        prefill = float(prefill_tokens * _layer_activations(shape, width))
        if copies_rest and not copies_weights:
            cast = shape.linear_weights + (0 if shape.tied else shape.head_weights)
            rest = BYTES[dtype] * (shape.parameters - (cast if casts else 0)) - joined
    parts = {
        "KV cache": tokens * token,
        "histories between turns": waiting,
        "states of linear attention": float(slots * shape.state_bytes(width)),
        "weights cast to bfloat16": casts,
        "joined weights": joined,
        "copy of the other weights": rest,
        "prefill beside training": prefill,
        "CUDA graphs": graphs,
        "weights": float(BYTES[dtype] * shape.parameters) if copies_weights else 0.0,
    }
    return EngineMemory(
        parts={name: size for name, size in parts.items() if size},
        kv_tokens=slots * length if cache_bytes is None else int(tokens),
        in_trainer={},
    )


def _activations(shape: ModelShape, dtype: str, engine: VllmMemoryOptions) -> float:
    """Return the bytes of activations that vLLM reserves.

    vLLM measures a pass with a full batch. The largest moment is the feed-forward part (gate, up and their product)
    or the sampler's logits.
    """
    width = BYTES[dtype]
    layers = engine.batched_tokens * _layer_activations(shape, width, engine.tensor_parallel)
    sampler = assumed.ENGINE_SAMPLER_COPIES * 4.0 * engine.max_sequences * shape.vocab
    return max(layers, sampler)


def _layer_activations(shape: ModelShape, width: int, split: int = 1) -> float:
    """Return the bytes of a token in the feed-forward part: gate, up and their product, and four hidden states; of
    experts, for each of a token's copies."""
    widest = width * 3 * shape.ffn / split
    if shape.experts is not None:
        widest = max(widest, shape.experts.widest(shape.hidden, width) / split)
    return widest + width * 4 * shape.hidden
