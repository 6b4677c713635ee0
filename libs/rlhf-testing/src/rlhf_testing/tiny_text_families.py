"""Options of tiny language models of many families, and the models with random weights as ordinary folders.

The sizes suit CPUs; ``write_tiny_text_model`` makes all widths larger for kernels that need wide heads.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .tiny import tiny_tokenizer

COMMON: Mapping[str, Any] = {
    "vocab_size": 100,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.2,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
WINDOWED = {"sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]}
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 32}
DELTA_RULE = {
    "layer_types": ["linear_attention", "full_attention"],
    "head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 12,
}

SHARED_KEYS = {
    "num_hidden_layers": 5,
    "layer_types": [
        "sliding_attention",
        "full_attention",
        "sliding_attention",
        "sliding_attention",
        "full_attention",
    ],
    "num_kv_shared_layers": 2,
    "sliding_window": 8,
    "head_dim": 8,
    "vocab_size_per_layer_input": 100,
    "hidden_size_per_layer_input": 8,
    "final_logit_softcapping": 30.0,
}
"""The last layers compute with the keys and values of earlier ones, and each has embeddings of its own."""

TEXT_FAMILIES: Mapping[str, Mapping[str, Any]] = {
    "cohere": {"use_qk_norm": True, "logit_scale": 0.25},
    "cohere2": {**WINDOWED, "logit_scale": 0.25},
    "deepseek_v3": {
        **EXPERTS,
        "num_key_value_heads": 4,
        "n_routed_experts": 4,
        "n_group": 2,
        "topk_group": 1,
        "first_k_dense_replace": 1,
        "kv_lora_rank": 16,
        "q_lora_rank": 16,
        "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 8,
        "v_head_dim": 12,
    },
    "gemma": {"head_dim": 8},
    "gemma2": {
        **WINDOWED,
        "head_dim": 8,
        "query_pre_attn_scalar": 8,
        "attn_logit_softcapping": 2.0,
        "final_logit_softcapping": 3.0,
    },
    "gemma3_text": {**WINDOWED, "head_dim": 8, "query_pre_attn_scalar": 8},
    "gemma3n_text": {
        **SHARED_KEYS,
        "intermediate_size": [64] * 5,
        "activation_sparsity_pattern": [0.9, 0.9, 0.0, 0.0, 0.0],
        "laurel_rank": 4,
    },
    "gemma4_text": {
        **SHARED_KEYS,
        "global_head_dim": 16,
        "num_global_key_value_heads": 1,
        "enable_moe_block": True,
        "num_experts": 4,
        "top_k_experts": 2,
        "moe_intermediate_size": 16,
    },
    "glm": {"head_dim": 8},
    "gpt2": {},
    "gpt_neox": {},
    "gpt_oss": {**WINDOWED, "head_dim": 8, "num_local_experts": 4, "num_experts_per_tok": 2},
    "granite": {
        "embedding_multiplier": 3.0,
        "attention_multiplier": 0.2,
        "residual_multiplier": 0.5,
        "logits_scaling": 2.0,
    },
    "lfm2": {
        "layer_types": ["conv", "full_attention"],
        "block_auto_adjust_ff_dim": False,
        # As published files have them: vLLM reads them, Transformers does not.
        **{"conv_dim": 32, "block_dim": 32},
    },
    "llama": {},
    "mistral": {"sliding_window": 8},
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 8},
    "olmo2": {},
    "olmo3": WINDOWED,
    "olmo_hybrid": DELTA_RULE,
    "opt": {"ffn_dim": 64, "init_std": 0.2, "word_embed_proj_dim": 32},
    "phi": {},
    "phi3": {"sliding_window": 8},
    "qwen2": {**WINDOWED, "use_sliding_window": True},
    "qwen2_moe": {**EXPERTS, "num_experts": 4, "shared_expert_intermediate_size": 32},
    "qwen3": {"head_dim": 8},
    "qwen3_5_moe_text": {**DELTA_RULE, **EXPERTS, "num_experts": 4},
    "qwen3_5_text": DELTA_RULE,
    "qwen3_moe": {**EXPERTS, "num_experts": 4, "head_dim": 8},
    "qwen3_next": {**DELTA_RULE, **EXPERTS, "num_experts": 4},
    "smollm3": {},
    "starcoder2": {"sliding_window": 8},
}
"""Model type -> its options beside ``COMMON``."""

WIDTHS = re.compile(
    r"(hidden_size|intermediate_size|head_dim|_rank|(proj|ffn|conv|block)_dim|hidden_size_per_layer_input)$"
)
"""Names of the options that are numbers of columns."""


def write_tiny_text_model(folder: Path, family: str, *, width: int = 1, seed: int = 0) -> Path:
    """Write a random model of ``family``, one of ``TEXT_FAMILIES``, and the tiny tokenizer into ``folder``, and return
    the folder.

    Args:
        width: factor of the options' widths, so also of the size of a head.
        seed: seed of the weights; the global random state stays as it is.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    options = {**COMMON, **TEXT_FAMILIES[family]}
    config = AutoConfig.for_model(
        family, **{name: _scaled(name, options[name], width) for name in options}
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.save_pretrained(folder)
    tiny_tokenizer(family=family).save_pretrained(folder)
    return folder


def _scaled(name: str, value: Any, width: int) -> Any:
    """Return an option's value for a wider model; random weights get smaller, so that sums keep their size."""
    if name in ("initializer_range", "init_std"):
        return value / width**0.5
    if not WIDTHS.search(name):
        return value
    return [width * each for each in value] if isinstance(value, list) else width * value
