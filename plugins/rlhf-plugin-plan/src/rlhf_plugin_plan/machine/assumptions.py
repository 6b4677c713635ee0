"""Constants of the memory model that no configuration has, each with its reason.

A constant is in bytes unless its description says otherwise. A measurement confirms it, or it is marked as assumed.
"""

from __future__ import annotations

from .hardware import GIB

MIB = 2**20

CONTEXT = 0.55 * GIB
"""Bytes of one process on a GPU for CUDA's context, loaded kernels and matmul workspaces. Assumed."""

COLLECTIVES = 1.0 * GIB
"""Bytes of the buffers of NCCL's channels, in each process of a role with several ranks. Assumed."""

TRAVELING = 8
"""Buckets of gradients that the ``deepspeed`` backend has on their way at once at stage 2."""

FRAGMENTATION = 0.03
"""Memory that torch's allocator holds beside a trainer's peak, as a share of the peak. Assumed."""

SPARE = 0.05
"""Share of a GPU's memory that what is chosen automatically leaves free. Of two runs of 76.3 of 79.1 predicted GiB one
ran out of memory in its second step: an allocator needs a piece as large as the tensor (4 H100, 2026-11-26)."""

ENGINE_GRAPHS = 0.9 * GIB
"""Bytes of vLLM's CUDA graphs, which vLLM does not count in its share of the memory. Assumed."""

ENGINE_BATCHED_TOKENS = 8192
"""Number of tokens of one pass of vLLM, vLLM's default on these GPUs; vLLM measures its activations with so many."""

ENGINE_SAMPLER_COPIES = 3
"""Number of arrays of float32 logits (sequences x V) that vLLM's sampler holds at once."""

SERVED_AT_ONCE = 1024
"""Largest number of sequences that the vLLM engine decodes together, unless its arguments say otherwise."""

ADAPTER_SLOTS = 4
"""Number of versions of an adapter with which the vLLM engine computes at once, unless its arguments say otherwise."""

ADAPTER_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Ranks for which vLLM makes room; an adapter gets the next one."""

SHARING_IS_WORTH = 0.05
"""Share of the tokens that must be saved for the backends to compute prompts once."""

UNEVEN_GROUPS = 0.05
"""Cost of the fullest rank beyond the mean up to which the samples of a prompt go to one rank."""

SHARING_ROOM = 4
"""Tokens of a micro-batch for each different token that it may have, if shared ones count with every sequence."""

GPU_CHUNK = 4096
"""Number of action tokens whose logits the backends hold at once on a GPU, unless ``logits_chunk`` is set."""

CHUNK_FUSED = 2
"""Number of arrays of a chunk's logits, in the type of the matmuls, in the head's fused backward pass: logits and
gradient."""

CHUNK_EAGER = 12
"""Bytes of one logit beside the head's product, without the fused backward pass: logits, log-softmax and probabilities
in float32."""

CHUNK_SCORING = 8
"""Bytes of one logit of a chunk in a pass without gradients and without the fused kernel: logits and log-softmax in
float32."""

CHUNK_SCORING_SCALED = 10
"""Bytes of one logit as in ``CHUNK_SCORING`` at another temperature than 1: logits before and after the division by
the temperature in float32, and the head's product."""

SCORES_FORWARD = 13 * 2**26
"""Bytes of the scores of some queries in a pass without gradients where no kernel computes attention, for the 2^26
scores that the backends hold at once. Measured on a CPU: 12.5 to 12.9 bytes a score, with sinks and capped, in bfloat16
and in float32."""

SCORES_BACKWARD = 21 * 2**26
"""The same in the backward pass, which makes them again, and their gradients. Measured on a CPU: with sinks 20.5 bytes
a score in bfloat16 and 20.8 in float32; capped 14.5 and 16.8, for which this is too much."""

LIVE_PARAMETERS = 10**9
"""Largest number of parameters that stage 3 keeps collected: DeepSpeed's default of ``stage3_max_live_parameters``."""

CACHE_GROWTH = 1.5
"""Room in the embedded engine's KV cache, as a multiple of the longest sequence."""

CACHE_PAGE = 64
"""Tokens of a page of the embedded engine's KV cache on a GPU."""

EMBEDDED_CACHE_SHARE = 0.3
"""Part of a GPU that the embedded engine's KV cache takes at most where ``kv_cache_gib`` is not set."""

EMBEDDED_GRAPHS = 0.5 * GIB
"""Bytes of the embedded engine's CUDA graphs and of what their steps hold. Assumed."""

EMBEDDED_BESIDE_TRAINING = 0.0
"""Parameters up to which the embedded engine generates beside training on one GPU where ``overlap`` is ``auto``."""

OPTIMIZER_TRAFFIC = 30
"""Bytes of GPU memory that one update of AdamW reads and writes for one parameter. The norm reads the gradient (2);
the update reads 14 and writes 14: weight, moments and gradient in their types."""
