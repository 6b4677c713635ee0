"""Tiny models whose files hold weights in MXFP4, as GPT-OSS is published, or FP8, as Qwen3 and DeepSeek are."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, FineGrainedFP8Config, Mxfp4Config

from rlhf_testing.tiny import tiny_tokenizer

COMMON: Mapping[str, Any] = {
    **{"vocab_size": 100, "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2},
    **{"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16},
    **{"max_position_embeddings": 1024, "initializer_range": 0.1},
    **{"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2},
}
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 32}
FAMILIES: Mapping[str, Mapping[str, Any]] = {
    "gpt_oss": {
        **{"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 8},
        "layer_types": ["sliding_attention", "full_attention"],
    },
    "qwen3": {},
    "qwen3_moe": {**EXPERTS, "num_experts": 4},
    "deepseek_v3": {
        **{**EXPERTS, "num_key_value_heads": 4, "n_routed_experts": 4, "n_group": 2},
        **{"topk_group": 1, "first_k_dense_replace": 1, "kv_lora_rank": 16, "q_lora_rank": 16},
        **{"qk_rope_head_dim": 16, "qk_nope_head_dim": 16, "v_head_dim": 16},
    },
}
UNPACKED = {"mxfp4": Mxfp4Config(dequantize=True), "fp8": FineGrainedFP8Config(dequantize=True)}
"""How Transformers unpacks the files of each method."""
FP4 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
"""Sizes of the eight numbers of four bits, before the sign."""
BLOCK = 16
"""Rows and columns of a block of FP8 that share a scale."""


def method_of(family: str) -> str:
    """The method in which a family's files are written."""
    return "mxfp4" if family == "gpt_oss" else "fp8"


def encode_mxfp4(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Blocks (E, O, I / 32, 16) of two numbers a byte, and scales (E, O, I / 32), powers of two, of experts (E, I, O).

    Each block of 32 numbers of an output has the scale with which its largest is at most 6; the first of two numbers is
    in the lower half of a byte.
    """
    experts, inputs, outputs = weight.shape
    blocks = weight.float().transpose(1, 2).reshape(experts, outputs, inputs // 32, 32)
    exponent = torch.ceil(torch.log2(blocks.abs().amax(-1).clamp_min(2.0**-100) / 6))
    scaled = blocks / torch.exp2(exponent)[..., None]
    size = (scaled.abs()[..., None] - FP4).abs().argmin(-1)
    code = (size + 8 * (scaled < 0)).to(torch.uint8)
    return code[..., 0::2] | (code[..., 1::2] << 4), (exponent + 127).to(torch.uint8)


def encode_fp8(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Numbers of eight bits (O, I), and the factor of each block of 16 x 16; the last blocks may be cut."""
    rows, columns = weight.shape
    whole = torch.nn.functional.pad(weight.float(), (0, -columns % BLOCK, 0, -rows % BLOCK))
    grid = whole.view(whole.shape[0] // BLOCK, BLOCK, whole.shape[1] // BLOCK, BLOCK)
    scale = grid.abs().amax((1, 3)).clamp_min(1e-12) / 448
    numbers = (grid / scale[:, None, :, None]).view(whole.shape)[:rows, :columns]
    return numbers.to(torch.float8_e4m3fn).contiguous(), scale


def in_mxfp4(name: str, weight: Tensor) -> dict[str, Tensor]:
    """A tensor as published files of GPT-OSS have it: experts are packed."""
    if not name.endswith(("experts.gate_up_proj", "experts.down_proj")):
        return {name: weight}
    blocks, scales = encode_mxfp4(weight)
    return {f"{name}_blocks": blocks, f"{name}_scales": scales}


def in_fp8(name: str, weight: Tensor) -> dict[str, Tensor]:
    """A tensor as published FP8 files have it: linear layers but the head, and each expert, are packed."""
    if not name.endswith("proj.weight") or weight.dim() != 2:
        return {name: weight}
    numbers, scale = encode_fp8(weight)
    return {name: numbers, f"{name}_scale_inv": scale}


PACK: Mapping[str, Callable[[str, Tensor], dict[str, Tensor]]] = {
    "mxfp4": in_mxfp4,
    "fp8": in_fp8,
}
SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "mxfp4": {"modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"]},
    "fp8": {
        **{"fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [BLOCK, BLOCK]},
        "modules_to_not_convert": ["lm_head"],
    },
}


def write_quantized(folder: Path, family: str, **changes: Any) -> Path:
    """Write a random model of a family in bfloat16, with packed weights as the family is published, and a tokenizer."""
    config = AutoConfig.for_model(family, **{**COMMON, **FAMILIES[family], **changes})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return pack(folder, method_of(family))


def pack(folder: Path, method: str) -> Path:
    """Pack the weights of a plain folder."""
    weights = load_file(folder / "model.safetensors")
    packed = {
        key: part.contiguous()
        for name, weight in weights.items()
        for key, part in PACK[method](name, weight).items()
    }
    save_file(packed, folder / "model.safetensors", metadata={"format": "pt"})
    set_quantization(folder, {"quant_method": method, **SETTINGS[method]})
    return folder


def set_quantization(
    folder: Path, settings: Mapping[str, Any], *, within: str | None = None
) -> None:
    """Write a ``quantization_config`` into config.json, or into the object of that name in it."""
    file = folder / "config.json"
    config = json.loads(file.read_text())
    (config if within is None else config.setdefault(within, {}))["quantization_config"] = settings
    file.write_text(json.dumps(config))


def without_weights(folder: Path, copy: Path) -> Path:
    """A copy of a folder whose weights are no such file: who reads them fails."""
    shutil.copytree(folder, copy)
    (copy / "model.safetensors").write_bytes(b"no weights")
    return copy


def unpacked(folder: Path, dtype: torch.dtype = torch.float32) -> Any:
    """The model as Transformers unpacks it, in float32."""
    method = json.loads((folder / "config.json").read_text())["quantization_config"]["quant_method"]
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=dtype, quantization_config=UNPACKED[method], attn_implementation="eager"
    )
    # Transformers leaves experts of MXFP4 in bfloat16, which has room for each of their numbers.
    return model.to(dtype).eval()
