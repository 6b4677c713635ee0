"""Every number of the memory model that is not in a configuration, with why it is what it is.

Bytes unless the name says otherwise. Each is checked against a measurement or is marked as assumed.
"""

from __future__ import annotations

from .hardware import GIB

MIB = 2**20

CONTEXT = 0.55 * GIB
"""Of one process on a GPU: CUDA's context, loaded kernels and matmul workspaces. Assumed."""

COLLECTIVES = 1.0 * GIB
"""Of one process with several ranks: the buffers of NCCL's channels. Assumed."""

FRAGMENTATION = 0.03
"""Share of a trainer's peak that torch's allocator holds beside it. Assumed."""

ENGINE_GRAPHS = 0.9 * GIB
"""CUDA graphs of vLLM, which it captures beside its share of the memory. Assumed."""

ENGINE_BATCHED_TOKENS = 8192
"""Tokens of one pass of vLLM, its default on GPUs of this size; its activations are measured with this many."""

ENGINE_SAMPLER_COPIES = 3
"""Arrays of float32 logits (sequences x V) that vLLM's sampler holds at once."""

SERVED_AT_ONCE = 1024
"""Sequences that the vLLM engine decodes together at most, unless its arguments say otherwise."""

SHARING_IS_WORTH = 0.05
"""Share of the tokens that the torch backend has to save before it computes prompts once."""

GPU_CHUNK = 4096
"""Action tokens whose logits the backends hold at once on a GPU, unless ``logits_chunk`` is set."""

CHUNK_FUSED = 2
"""Arrays of a chunk's logits in the type of the matmuls that the fused backward pass of the head holds: the logits and
their gradient."""

CHUNK_EAGER = 12
"""Bytes of one logit beside the head's own product where the backward pass is not fused: logits, log-softmax and
probabilities in float32."""

CHUNK_SCORING = 8
"""Bytes of one logit of a chunk without a gradient where no kernel reads the head's product directly: logits and
log-softmax in float32."""

CHUNK_SCORING_SCALED = 10
"""The same at another temperature than 1: logits before and after it, and the head's own product."""

LIVE_PARAMETERS = 10**9
"""Parameters that DeepSpeed's stage 3 keeps collected at most, its default for ``stage3_max_live_parameters``."""

WEIGHT_BUCKET = 256 * MIB
"""Of the vLLM engine's transfer, unless ``bucket_mib`` is set; a larger tensor gets a larger one."""

CACHE_GROWTH = 1.5
"""By how much the embedded engine's cache may be larger than its longest sequence."""

OPTIMIZER_TRAFFIC = 30
"""Bytes of GPU memory moved for one parameter and update of AdamW: the gradient is read for its norm (2); then 14
are read and 14 written: weight, moments and gradient in their types."""
