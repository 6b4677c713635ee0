"""Published model shapes with random weights and a tokenizer of their own: speed is measured without a download."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

VOCABULARY = 151936
TINY = "tiny"
"""Of our own, a few million parameters: for a machine without a GPU."""
SEEING_TINY = "vl-tiny"
"""Of our own too, and it reads images."""
SEEING_HYBRID_TINY = "qwen3.5-tiny"
"""Of our own too: a Qwen3.5 with its vision tower."""
TEXT_TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
SEEING_TEMPLATE = (
    "{% for message in messages %}{% if message['content'] is string %}{{ message['content'] }}"
    "{% else %}{% for part in message['content'] %}{% if part['type'] == 'image' %}"
    "<|vision_start|><|image_pad|><|vision_end|>"
    "{% elif 'text' in part %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}{% endfor %}"
)
VISION_WORDS = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
QWEN2_5_PIXELS = {
    "image_processor_type": "Qwen2VLImageProcessor",
    "processor_class": "Qwen2_5_VLProcessor",
    "patch_size": 14,
    "merge_size": 2,
    "temporal_patch_size": 2,
    "min_pixels": 3136,
    "max_pixels": 12845056,
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
}
QWEN3_5_PIXELS = {
    "processor_class": "Qwen3VLProcessor",
    "patch_size": 16,
    "merge_size": 2,
    "temporal_patch_size": 2,
    "size": {"shortest_edge": 65536, "longest_edge": 16777216},
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
}
PIXELS_OF_A_TOKEN = 28
"""Of the side of the square that Qwen2.5-VL makes one token of: 14 of a patch, and two patches."""


@dataclass(frozen=True)
class Shape:
    """Dimensions of a Qwen2.5, Qwen2.5-VL, Qwen3.5 or Qwen3-MoE model, as its ``config.json`` has them."""

    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    tied: bool = True
    vision_layers: int = 0
    """Of the vision tower of a Qwen2.5-VL or Qwen3.5; 0 for a model of text."""
    linear_heads: int = 0
    """Of the gated linear attention in three of four layers of a Qwen3.5; 0 for the other families."""
    vocabulary: int = VOCABULARY
    experts: int = 0
    """Of each layer of a Qwen3-MoE, of which a token has 8; 0 for models whose layers are dense."""

    @property
    def sees(self) -> bool:
        return self.vision_layers > 0


SHAPES = {
    "0.5b": Shape(896, 4864, 24, 14, 2),
    "1.5b": Shape(1536, 8960, 28, 12, 2),
    "3b": Shape(2048, 11008, 36, 16, 2),
    "7b": Shape(3584, 18944, 28, 28, 4, tied=False),
    "32b": Shape(5120, 27648, 64, 40, 8, tied=False),
    "qwen3.5-0.8b": Shape(1024, 3584, 24, 8, 2, linear_heads=16, vocabulary=248320),
    # As it is published, with its vision tower: the only form that vLLM serves.
    "qwen3.5-0.8b-vision": Shape(
        1024, 3584, 24, 8, 2, vision_layers=12, linear_heads=16, vocabulary=248320
    ),
    SEEING_HYBRID_TINY: Shape(256, 512, 4, 2, 1, vision_layers=2, linear_heads=4),
    # A quarter of the layers and of the experts of Qwen3-30B-A3B, whose widths it has.
    "moe-3b": Shape(2048, 768, 12, 32, 4, tied=False, experts=32),
    "vl-3b": Shape(2048, 11008, 36, 16, 2, vision_layers=32),
    SEEING_TINY: Shape(256, 512, 2, 2, 1, vision_layers=2),
}


def write_model(name: str, folder: Path, *, four_bits: bool = False) -> None:
    """Write config, tokenizer and seeded bfloat16 weights into ``folder``; made on the GPU if there is one.

    A model that reads images gets the settings of its image processor too.

    Each byte of a text is one token. The shape ``TINY`` has float32 weights and a tokenizer of its own.

    Args:
        four_bits: linear layers but the head are in bitsandbytes' 4 bits, as checkpoints for QLoRA are published. The
            other form of the shape ``32b`` has 61 GiB.
    """
    if name == TINY:
        from rlhf_testing.tiny import write_tiny_model

        write_tiny_model(folder, hidden_size=256, num_layers=8)
        return
    import torch

    shape = SHAPES[name]
    torch.manual_seed(0)
    with torch.device("meta" if four_bits else _device()):
        model = _model(shape)
    if four_bits:
        _fill_in_four_bits(model)
    model.save_pretrained(folder)
    _write_tokenizer(folder, shape)
    if shape.sees:
        _write_processors(folder, shape)


def image_tokens(side: int) -> int:
    """Return the number of tokens of a square image of ``side`` pixels, the two around it included."""
    return (side // PIXELS_OF_A_TOKEN) ** 2 + 2


def _model(shape: Shape) -> Any:
    if shape.linear_heads:
        return _seeing_hybrid_model(shape) if shape.sees else _hybrid_model(shape)
    if shape.experts:
        return _mixture(shape)
    return _seeing_model(shape) if shape.sees else _text_model(shape)


def _hybrid_model(shape: Shape) -> Any:
    """Return the text model of a Qwen3.5, whose heads and gates have the published sizes."""
    import torch
    from transformers import AutoModelForCausalLM, Qwen3_5TextConfig

    config = Qwen3_5TextConfig(
        **_hybrid_dimensions(shape), tie_word_embeddings=shape.tied, dtype="bfloat16"
    )
    return AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)


def _seeing_hybrid_model(shape: Shape) -> Any:
    """Return a Qwen3.5 with the vision tower of its smallest model, which differs here in its layers alone."""
    import torch
    from transformers import AutoModelForImageTextToText, Qwen3_5Config

    rope = {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25}
    rope |= {"mrope_interleaved": True, "mrope_section": [11, 11, 10]}
    vision = {
        "depth": shape.vision_layers,
        "hidden_size": 768,
        "intermediate_size": 3072,
        "num_heads": 12,
        "patch_size": 16,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        "num_position_embeddings": 2304,
        "out_hidden_size": shape.hidden,
    }
    config = Qwen3_5Config(
        text_config={**_hybrid_dimensions(shape), "rope_parameters": rope, "dtype": "bfloat16"},
        vision_config=vision,
        tie_word_embeddings=shape.tied,
        **_vision_ids(shape),
        dtype="bfloat16",
    )
    return AutoModelForImageTextToText.from_config(config, dtype=torch.bfloat16)


def _hybrid_dimensions(shape: Shape) -> dict[str, int]:
    return {
        **_dimensions(shape),
        "head_dim": 256,
        "linear_num_key_heads": shape.linear_heads,
        "linear_num_value_heads": shape.linear_heads,
        **_special_ids(),
    }


def _mixture(shape: Shape) -> Any:
    """Return a Qwen3-MoE, whose feed-forward size is that of an expert."""
    import torch
    from transformers import AutoModelForCausalLM, Qwen3MoeConfig

    config = Qwen3MoeConfig(
        **_dimensions(shape),
        head_dim=128,
        moe_intermediate_size=shape.intermediate,
        num_experts=shape.experts,
        num_experts_per_tok=8,
        norm_topk_prob=True,
        tie_word_embeddings=shape.tied,
        dtype="bfloat16",
        **_special_ids(),
    )
    return AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)


def _text_model(shape: Shape) -> Any:
    import torch
    from transformers import AutoModelForCausalLM, Qwen2Config

    config = Qwen2Config(
        **_dimensions(shape), tie_word_embeddings=shape.tied, dtype="bfloat16", **_special_ids()
    )
    return AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)


def _seeing_model(shape: Shape) -> Any:
    """Return a Qwen2.5-VL with the published vision tower, which differs between shapes in its layers alone."""
    import torch
    from transformers import AutoModelForImageTextToText, Qwen2_5_VLConfig

    rope = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [16, 24, 24]}
    vision = {
        "depth": shape.vision_layers,
        "hidden_size": 1280,
        "intermediate_size": 3420,
        "num_heads": 16,
        "patch_size": 14,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        "window_size": 112,
        "fullatt_block_indexes": list(range(shape.vision_layers))[7::8] or [0],
        "out_hidden_size": shape.hidden,
        "tokens_per_second": 2,
    }
    config = Qwen2_5_VLConfig(
        text_config={**_dimensions(shape), "rope_parameters": rope, **_special_ids()},
        vision_config=vision,
        tie_word_embeddings=shape.tied,
        **_vision_ids(shape),
        dtype="bfloat16",
    )
    return AutoModelForImageTextToText.from_config(config, dtype=torch.bfloat16)


def _dimensions(shape: Shape) -> dict[str, int]:
    return {
        "vocab_size": shape.vocabulary,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "max_position_embeddings": 32768,
    }


def _vision_ids(shape: Shape) -> dict[str, int]:
    """Return the ids of ``VISION_WORDS``, the last of the vocabulary, by their names in a configuration."""
    names = ("vision_start_token_id", "vision_end_token_id", "image_token_id", "video_token_id")
    return {name: shape.vocabulary - 4 + number for number, name in enumerate(names)}


def _special_ids() -> dict[str, int]:
    return {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}


def _device() -> str:
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def _fill_in_four_bits(model: Any) -> None:
    """Give a model without storage random weights, of which one at a time is ever whole."""
    import torch
    from bitsandbytes.nn import Linear4bit, Params4bit
    from torch.nn import Parameter
    from transformers import BitsAndBytesConfig
    from transformers.quantizers import AutoHfQuantizer

    config = BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True
    )
    quantizer = AutoHfQuantizer.from_config(config, pre_quantized=False)
    quantizer.preprocess_model(model, device_map=None)
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            weight = torch.empty(parameter.shape, dtype=torch.bfloat16, device=_device())
            if weight.ndim == 1:
                weight.fill_(0.0 if name == "bias" else 1.0)
            else:
                weight.normal_(0.0, model.config.initializer_range)
            if isinstance(module, Linear4bit) and name == "weight":
                packed = Params4bit(weight, requires_grad=False, quant_type="nf4", module=module)
                module.weight = packed.to(_device())
            else:
                setattr(module, name, Parameter(weight, requires_grad=False))
    # ``from_pretrained`` would have set these.
    model.hf_quantizer, model.is_loaded_in_4bit = quantizer, True
    model.config.quantization_config = config


def _write_tokenizer(folder: Path, shape: Shape) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    special = ["<pad>", "<bos>", "<eos>", "<unk>"]
    tokens = special + sorted(pre_tokenizers.ByteLevel.alphabet())
    seeing = shape.sees
    last = list(VISION_WORDS) if seeing else []
    # As many tokens as the model has, so that whatever it samples can be decoded.
    tokens += [f"<unused{number}>" for number in range(len(tokens), shape.vocabulary - len(last))]
    vocabulary = {token: number for number, token in enumerate([*tokens, *last])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    names = dict(zip(("pad_token", "bos_token", "eos_token", "unk_token"), special, strict=True))
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, additional_special_tokens=last, **names
    )
    fast.chat_template = SEEING_TEMPLATE if seeing else TEXT_TEMPLATE
    fast.save_pretrained(folder)


def _write_processors(folder: Path, shape: Shape) -> None:
    """Write the settings of the image processor that Qwen2.5-VL or Qwen3.5 is published with; for Qwen3.5 those of the
    video processor too, without which vLLM does not load its files."""
    if not shape.linear_heads:
        (folder / "preprocessor_config.json").write_text(json.dumps(QWEN2_5_PIXELS))
        return
    for kind, name in (
        ({"image_processor_type": "Qwen2VLImageProcessor"}, "preprocessor_config.json"),
        ({"video_processor_type": "Qwen3VLVideoProcessor"}, "video_preprocessor_config.json"),
    ):
        (folder / name).write_text(json.dumps(kind | QWEN3_5_PIXELS))
