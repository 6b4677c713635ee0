"""Tiny configurations of every type of causal language model that Transformers knows, made from its defaults."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, PreTrainedConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from rlhf_testing.tiny_text_families import COMMON, TEXT_FAMILIES

CAUSAL_TYPES = tuple(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
MOST_PARAMETERS = 3_000_000

SMALL = {
    r"bos_token_id|decoder_start_token_id": 1,
    r"eos_token_id": 2,
    r"pad_token_id": 0,
    r"(\w+_)?vocab_size(_per_layer(_input)?)?|n_vocab": 100,
    r"max_(position_embeddings|seq_len|sequence_length|(target|source)_positions)": 256,
    r"n_positions|n_ctx|context_length": 256,
    r"original_max_position_embeddings": 128,
    r"num_(hidden_|decoder_|encoder_)?layers|n_layers?|(de|en)coder_layers|num_blocks": 2,
    r"(swa_)?num_(attention_)?heads|n_heads?|(de|en)coder_attention_heads": 4,
    r"(swa_)?num_(key_value|kv)_heads|num_global_key_value_heads|multi_query_group_num": 2,
    r"hidden_size|d_model|n_embd|embedding_size|dim|dim_model|word_embed_proj_dim|emb(ed)?_dim|lru_width": 32,
    r"(moe|dense|shared_expert|moe_shared_expert)_intermediate_size|(expert_)?ffn(_hidden)?_(size|dim)": 48,
    r"d_ff|n_inner|(de|en)coder_ffn_dim|dff|dim_ff|inner_dim": 48,
    r"\w*intermediate_size\w*": 64,
    r"(global_|swa_|attention_|mamba_|index_)?head_dim|qk_(rope_|nope_)?head_dim|d_kv|dim_head|rotary_dim": 8,
    r"kv_channels|mamba_d_head": 8,
    r"(swa_)?v_head_dim": 12,
    r"(q|kv|o)_lora_rank": 16,
    r"(moe_)?num_(routed_|local_)?experts|n_(routed_)?experts": 4,
    r"(num_)?experts_per_tok(en)?|num_experts_per_tok(en)?|moe_top_?k|moe_k|top_k(_experts)?": 2,
    r"n_group|num_expert_group": 2,
    r"topk_group|first_k_dense_replace|moe_layer_start_index|num_dense_layers": 1,
    r"sliding_window|(attention_)?window_size|local_attention": 8,
    r"(ssm_)?state_size|mamba_d_state": 8,
    r"(n_)?mamba_(num_|n_)?heads": 4,
    r"(mamba_)?n_groups|mamba_ngroups": 1,
    r"(mamba_)?chunk_size": 16,
    r"initializer_range|init(ializer)?_std|init_scale": 0.2,
    r"\w*dropout\w*|layerdrop|\w*_drop|\w*pdrop": 0.0,
    r"linear_num_key_heads": 2,
    r"linear_num_value_heads": 4,
    r"linear_key_head_dim": 8,
    r"linear_value_head_dim": 12,
    r"num_nextn_predict_layers": 0,
}
"""Names of numbers in configurations, and small ones: attention and gates still matter, and a model has some 10^5
parameters."""

_MAMBA = {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_expand": 2}
_CAUSAL = {"is_decoder": True}
OWN: Mapping[str, Mapping[str, Any]] = {
    **{family: {**COMMON, **options} for family, options in TEXT_FAMILIES.items()},
    "bamba": {**_MAMBA, "attn_layer_indices": [1]},
    "bert": _CAUSAL,
    "deepseek_v2": {"topk_method": "group_limited_greedy", "num_key_value_heads": 4},
    "dots1": {"n_shared_experts": 1},
    "falcon": {"num_kv_heads": 2, "alibi": False},
    "falcon_h1": {**_MAMBA, "mamba_d_ssm": 64},
    "gpt_neo": {"num_layers": 2, "attention_types": [[["global", "local"], 1]]},
    "granitemoehybrid": {**_MAMBA, "layer_types": ["mamba", "attention"]},
    "hunyuan_v1_dense": {"head_dim": 8},
    "hunyuan_v1_moe": {"head_dim": 8},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "longcat_flash": {"head_dim": 8, "qk_head_dim": 16, "zero_expert_num": 2},
    "mamba2": {"num_heads": 8, "head_dim": 8},
    "ministral": {"head_dim": 8},
    "nemotron": {"head_dim": 8, "num_key_value_heads": 2},
    "roberta": _CAUSAL,
    "xmod": {"default_language": "en_XX", "languages": ["en_XX"]},
    "zaya": {"num_experts_per_tok": 1},
}
"""What a type needs beside ``SMALL``, where numbers of its configuration belong together."""


class NotMadeError(Exception):
    """No tiny model of a type is made: it has parts of its own, such as a vision tower, or sizes that no rule knows."""


def tiny_config(model_type: str) -> PreTrainedConfig:
    """Return a configuration with two layers and small numbers in the places of the type's own."""
    kind = CONFIG_MAPPING[model_type]
    usual = kind().to_dict()
    own = OWN.get(model_type, {})
    numbers = {
        name: next((small for words, small in SMALL.items() if re.fullmatch(words, name)), value)
        for name, value in usual.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }
    if usual.get("num_key_value_heads") == usual.get("num_attention_heads") is not None:
        numbers["num_key_value_heads"] = numbers["num_attention_heads"]
    chosen = {name: value for name, value in numbers.items() if value != usual[name]}
    return kind(**{**chosen, **_lists_by_layer(usual), **own})


def _lists_by_layer(usual: Mapping[str, Any]) -> dict[str, Any]:
    """Return the lists with an entry for each layer, for two layers: one of each of the first two kinds."""
    deep = next((usual[name] for name in ("num_hidden_layers", "n_layer") if usual.get(name)), 0)
    found = {}
    for name, value in usual.items():
        if isinstance(value, list | tuple) and len(value) == deep > 2:
            kinds = [one for at, one in enumerate(value) if one not in value[:at]]
            found[name] = (kinds * 2)[:2]
    return found


def write_tiny_causal_model(folder: Path, model_type: str) -> None:
    """Write a model with random weights, of which none is constant.

    Raises:
        NotMadeError: Transformers makes no model of the configuration, or a large one.
    """
    try:
        config = tiny_config(model_type)
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config)
        if sum(weight.numel() for weight in model.parameters()) > MOST_PARAMETERS:
            raise NotMadeError("it is large")
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
            for weight in model.parameters():
                if weight.numel() > 1 and bool((weight == weight.flatten()[0]).all()):
                    weight.data += 0.1 * torch.randn_like(weight)
    except NotMadeError:
        raise
    except Exception as error:
        raise NotMadeError(f"{type(error).__name__}: {error}") from error
    model.save_pretrained(folder)
