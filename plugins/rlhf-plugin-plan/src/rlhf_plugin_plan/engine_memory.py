"""GPU memory of one engine: weights, KV cache, and what is beside them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from . import assumptions as assumed
from .hardware import GIB, Gpu
from .shapes import ModelShape

BYTES = {"float32": 4, "bfloat16": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmEngine:
    """The options of the engine ``vllm`` that decide its memory."""

    memory_share: float
    kv_cache_gib: float | None
    bucket_mib: int
    tensor_parallel: int
    pipeline_parallel: int
    data_parallel: int = 1
    """Copies of the model, each with a cache of its own; the rest is of one copy."""
    batched_tokens: int = assumed.ENGINE_BATCHED_TOKENS
    """Of one pass."""
    graphs: bool
    max_sequences: int
    kv_width: float
    """Bytes of one number in the cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineMemory:
    """One engine on one of its GPUs."""

    parts: Mapping[str, float]
    kv_tokens: int
    """For which the KV cache has room, counted over the GPUs of one copy of the model."""
    in_trainer: Mapping[str, float]
    """What stands in the trainer's process for the engine's sake."""

    @property
    def peak_bytes(self) -> float:
        return sum(self.parts.values())


def kv_bytes(shape: ModelShape, width: float) -> float:
    """Bytes of one token in the KV cache: ``2 L K`` numbers."""
    return 2 * shape.layers * shape.kv_width * width


def stage_parameters(shape: ModelShape, stages: int) -> float:
    """Parameters of the largest of P pipeline stages: ``ceil(L / P)`` layers, and of several stages the first has the
    embeddings and the last the norm and the head."""
    if stages == 1:
        return shape.parameters
    layers = shape.layer_parameters * _layers(shape, stages) / shape.layers
    return layers + shape.hidden + shape.head_weights


def _layers(shape: ModelShape, stages: int) -> int:
    return -(-shape.layers // stages)


def vllm_memory(shape: ModelShape, dtype: str, engine: VllmEngine, gpu: Gpu) -> EngineMemory:
    """Return what vLLM takes: its share of the GPU whatever the model, or the cache that was asked for and the rest.

    A KV cache of 0 tokens means that weights and activations fill the share already.
    """
    split = engine.tensor_parallel * engine.pipeline_parallel
    weights = (
        BYTES[dtype] * stage_parameters(shape, engine.pipeline_parallel) / engine.tensor_parallel
    )
    activations = _activations(shape, dtype, engine)
    if engine.kv_cache_gib is None:
        share = engine.memory_share * gpu.memory
        cache = max(0.0, share - weights - activations - assumed.CONTEXT)
    else:
        cache = engine.kv_cache_gib * GIB
    parts = {
        "weights": weights,
        "KV cache": cache,
        "activations": activations,
        "CUDA context": assumed.CONTEXT,
    }
    if engine.graphs:
        parts["CUDA graphs"] = assumed.ENGINE_GRAPHS
    if split > 1:
        parts["collectives"] = assumed.COLLECTIVES
    table = BYTES[dtype] * shape.head_weights
    bucket = max(engine.bucket_mib * assumed.MIB, table)
    # The stage with the most layers is full first.
    token = (
        kv_bytes(shape, engine.kv_width) * _layers(shape, engine.pipeline_parallel) / shape.layers
    )
    return EngineMemory(
        parts=parts,
        kv_tokens=int(cache * min(engine.tensor_parallel, shape.kv_heads) / token),
        in_trainer={"bucket for the engine's weights": float(bucket)},
    )


def embedded_memory(
    shape: ModelShape,
    dtype: str,
    compute: str,
    *,
    slots: int,
    length: int,
    copies_weights: bool,
) -> EngineMemory:
    """Return what the embedded engine takes: a cache with a row per slot, weights cast for decoding, or copied."""
    width = BYTES[compute]
    token = kv_bytes(shape, width)
    casts = 0.0
    if compute != dtype:
        head = 0 if shape.tied else shape.head_weights
        # A tied head is cast too: the linear layer holds a copy, the embedding its float32.
        casts = float(width * (shape.layer_weights + (head or shape.head_weights)))
    parts = {
        "KV cache": slots * length * token * assumed.CACHE_GROWTH,
        "weights cast to bfloat16": casts,
        "weights": float(BYTES[dtype] * shape.parameters) if copies_weights else 0.0,
    }
    return EngineMemory(
        parts={name: size for name, size in parts.items() if size},
        kv_tokens=slots * length,
        in_trainer={},
    )


def _activations(shape: ModelShape, dtype: str, engine: VllmEngine) -> float:
    """Of the pass with which vLLM measures itself: gate, up and their product of a full batch, or the sampler."""
    width = BYTES[dtype]
    each = width * (3 * shape.ffn / engine.tensor_parallel + 4 * shape.hidden)
    layers = engine.batched_tokens * each
    sampler = assumed.ENGINE_SAMPLER_COPIES * 4.0 * engine.max_sequences * shape.vocab
    return max(layers, sampler)
