"""Tiny image-text models with random weights, a character tokenizer and real image processors, as folders.

The loading code of real models reads these folders, and nothing is downloaded.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .tiny import ALPHABET, alternating, linear_attention, text_entries, tiny_tokenizer
from .tiny_vision_families import (
    MERGE,
    PATCH,
    TILE,
    WRITTEN,
    Parts,
    TinyFamily,
    frame_reading,
    square,
)

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerFast

WORDS = (
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<|video_pad|>",
    "<image>",
)
"""Control tokens of the first families, beside those of the tiny tokenizer."""
CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n"
    "{% if m['content'] is string %}{{ m['content'] }}{% else %}{% for part in m['content'] %}"
    "{% if part['type'] == 'image' or 'image' in part %}IMAGE"
    "{% elif part['type'] == 'video' or 'video' in part %}VIDEO"
    "{% elif 'text' in part %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""A template that does with messages what Qwen2.5-VL's does; ``IMAGE`` is the place of the family's marker,
``VIDEO`` that of videos."""
QWEN = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe")
"""Families whose images are ``<|image_pad|>`` alone."""
LLAVA_SIDE = 24
"""Pixels of the side of the images that the tiny LLaVA reads, as 9 tokens each."""
GEMMA_SIDE = 32
"""Pixels of the side of the images that the tiny Gemma 3 reads, as 16 tokens each."""
GEMMA_WINDOW = 12
"""Tokens that the first layer of the tiny Gemma 3 looks back: fewer than an image has."""
CONSTANT = {
    "gemma3": "mm_input_projection_weight",
    "gemma3n": "correct_output_scale",
    "gemma4": "position_embedding_table",
}
"""Weights that start from one number, so that images or patches would look the same, or nobody read the embeddings that
layers have of tokens."""
VISION_FAMILIES = ("qwen2_5_vl", "qwen3_vl", "qwen3_5", "llava", "gemma3", "internvl")
MORE_VISION_FAMILIES = ("qwen2_vl", "qwen3_vl_moe", "qwen3_5_moe", *WRITTEN)
"""Families of which one quick test each runs everywhere, and all others in the full matrix."""


def write_tiny_vision_model(
    folder: Path,
    family: str = "qwen2_5_vl",
    *,
    alphabet: str = ALPHABET,
    hidden_size: int = 32,
    num_layers: int = 2,
    num_heads: int = 4,
    vision_layers: int = 2,
    initializer_range: float = 0.02,
    tied: bool = False,
    seed: int = 0,
) -> Path:
    """Write a random image-text model of ``family``, its tokenizer and its processor into ``folder``, and return the
    folder. For the Qwen families an image of 8 by 8 pixels is one token.

    Args:
        family: one of ``VISION_FAMILIES`` or ``MORE_VISION_FAMILIES``.
        alphabet: characters that the tokenizer knows, one token each.
        vision_layers: layers of the part that reads pixels.
        initializer_range: standard deviation of the random weights; narrow models learn faster with more than 0.02.
        seed: seed of the weights; the global random state stays as it is.

    Raises:
        ValueError: no family has this name.
    """
    import torch
    from transformers import AutoModelForImageTextToText

    tokenizer = tiny_vision_tokenizer(alphabet, family)
    config = tiny_vision_config(
        family,
        tokenizer,
        hidden_size=hidden_size,
        num_layers=num_layers,
        num_heads=num_heads,
        vision_layers=vision_layers,
        initializer_range=initializer_range,
        tied=tied,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForImageTextToText.from_config(config, dtype=torch.float32)
        for name, parameter in model.named_parameters():
            if family in CONSTANT and name.endswith(CONSTANT[family]):
                torch.nn.init.normal_(parameter, std=initializer_range)
    folder.mkdir(parents=True, exist_ok=True)
    _name_as_published(model)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    write_image_processor(folder, family)
    return folder


def _name_as_published(model: PreTrainedModel) -> None:
    """Have a model saved as published checkpoints are: there the parts of some towers have a prefix, and some stacks of
    experts another order, which Transformers writes for a model that it has read so alone."""
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import PrefixChange, Transpose

    ways = get_model_conversion_mapping(model, add_legacy=False)
    for operation in chain.from_iterable(getattr(way, "operations", ()) for way in ways):
        if isinstance(operation, Transpose):
            operation.check_dims = False
    model._weight_conversions = [
        way for way in ways if not isinstance(way, PrefixChange) or way.scope_prefix is not None
    ]


def write_image_processor(folder: Path, family: str) -> None:
    """Write the image processor of a tiny model of ``family`` into its folder.

    Raises:
        ValueError: no family has this name.
    """
    from transformers.models.auto.image_processing_auto import get_image_processor_class_from_name

    chosen = family_of(family)
    kind = get_image_processor_class_from_name(f"{chosen.reader}ImageProcessorPil")
    kind(**chosen.reads).save_pretrained(folder)


def tiny_vision_tokenizer(
    alphabet: str = ALPHABET, family: str = "qwen2_5_vl"
) -> PreTrainedTokenizerFast:
    """Return the tiny tokenizer with the control tokens and a chat template of image-text models.

    Raises:
        ValueError: no family has this name.
    """
    chosen = family_of(family)
    tokenizer = tiny_tokenizer(alphabet, family)
    tokenizer.add_special_tokens({"additional_special_tokens": [*WORDS, *chosen.words]})
    tokenizer.eos_token = "<|im_end|>"
    video = chosen.marker.replace("image", "video") if family in QWEN else ""
    tokenizer.chat_template = CHAT_TEMPLATE.replace("IMAGE", chosen.marker).replace("VIDEO", video)
    return tokenizer


def tiny_vision_config(
    family: str,
    tokenizer: PreTrainedTokenizerFast,
    *,
    hidden_size: int,
    num_layers: int,
    num_heads: int,
    vision_layers: int,
    initializer_range: float,
    tied: bool,
) -> PretrainedConfig:
    """Return the configuration of a small model of ``family``.

    Raises:
        ValueError: no family has this name.
    """
    from transformers import AutoConfig

    chosen = family_of(family)
    text = text_entries(len(tokenizer), hidden_size, num_layers, num_heads) | {
        "initializer_range": initializer_range,
        "tie_word_embeddings": tied,
        "eos_token_id": tokenizer.eos_token_id,
    }
    vision = {
        "hidden_size": hidden_size,
        "intermediate_size": 2 * hidden_size,
        "initializer_range": initializer_range,
        "num_hidden_layers": vision_layers,
        "num_attention_heads": 2,
    }
    parts = Parts(id_of=tokenizer.convert_tokens_to_ids, text=text, vision=vision)
    entries = chosen.config(parts)
    return AutoConfig.for_model(family, **entries, tie_word_embeddings=tied)


def _qwen(family: str, parts: Parts) -> dict[str, Any]:
    head_dim = parts.text["hidden_size"] // parts.text["num_attention_heads"]
    rope = {
        "rope_type": "default",
        "rope_theta": 10_000.0,
        "mrope_section": _sections(head_dim // 2),
    }
    text, vision = {**parts.text, "rope_parameters": rope}, parts.frames
    if family.endswith("_moe"):
        text |= {"num_experts": 4, "num_experts_per_tok": 2}
        text |= {"moe_intermediate_size": 2 * text["hidden_size"]}
    if family in ("qwen3_vl", "qwen3_vl_moe"):
        text["head_dim"] = head_dim
        # As the real ones say: Transformers always mixes the axes so, and vLLM does where it is written.
        rope["mrope_interleaved"] = True
        vision |= {"num_position_embeddings": 64, "deepstack_visual_indexes": [0]}
        if family == "qwen3_vl_moe":
            # As published files have it: vLLM reads it, Transformers does not.
            text["norm_topk_prob"] = True
    elif family in ("qwen3_5", "qwen3_5_moe"):
        text |= {
            "head_dim": head_dim,
            "layer_types": alternating(text["num_hidden_layers"], "linear_attention"),
        }
        text |= linear_attention(text["hidden_size"], text["num_attention_heads"])
        rope |= {"mrope_interleaved": True, "partial_rotary_factor": 0.5}
        rope["mrope_section"] = _sections(head_dim // 4)
        vision |= {"num_position_embeddings": 64}
        if family == "qwen3_5_moe":
            del text["intermediate_size"]
            text["shared_expert_intermediate_size"] = text["hidden_size"]
    elif family == "qwen2_vl":
        vision |= {"embed_dim": vision["hidden_size"], "hidden_size": vision.pop("out_hidden_size")}
        del vision["intermediate_size"]
        vision["mlp_ratio"] = 2
    else:
        vision |= {"window_size": 4 * PATCH, "fullatt_block_indexes": [vision["depth"] - 1]}
    return {
        "text_config": text,
        "vision_config": vision,
        "image_token_id": parts.id_of("<|image_pad|>"),
        "video_token_id": parts.id_of("<|video_pad|>"),
        "vision_start_token_id": parts.id_of("<|vision_start|>"),
        "vision_end_token_id": parts.id_of("<|vision_end|>"),
    }


def _llava(parts: Parts) -> dict[str, Any]:
    own = {
        "num_hidden_layers": parts.vision["num_hidden_layers"] + 1,  # the last one is not read
        "image_size": LLAVA_SIDE,
        "patch_size": PATCH * MERGE,
        "projection_dim": parts.text["hidden_size"],
    }
    return {
        "text_config": parts.text | {"model_type": "llama"},
        "vision_config": parts.vision | own | {"model_type": "clip_vision_model"},
        "image_token_index": parts.id_of("<image>"),
    }


def _gemma3(parts: Parts) -> dict[str, Any]:
    head_dim = parts.text["hidden_size"] // parts.text["num_attention_heads"]
    own = {
        "head_dim": head_dim,
        "query_pre_attn_scalar": head_dim,
        "sliding_window": GEMMA_WINDOW,
        "layer_types": alternating(parts.text["num_hidden_layers"], "sliding_attention"),
    }
    tower = {"image_size": GEMMA_SIDE, "patch_size": PATCH, "vision_use_head": False}
    return {
        "text_config": parts.text | own,
        "vision_config": parts.vision | tower,
        "mm_tokens_per_image": (GEMMA_SIDE // PATCH // MERGE) ** 2,
        "boi_token_index": parts.id_of("<start_of_image>"),
        "eoi_token_index": parts.id_of("<end_of_image>"),
        "image_token_index": parts.id_of("<image_soft_token>"),
    }


def _internvl(parts: Parts) -> dict[str, Any]:
    return {
        "text_config": parts.text | {"model_type": "qwen2"},
        "vision_config": parts.vision | {"image_size": TILE, "patch_size": PATCH},
        "image_token_id": parts.id_of("<IMG_CONTEXT>"),
        "image_seq_length": (TILE // PATCH // MERGE) ** 2,
    }


def _sections(half: int) -> list[int]:
    """Return the numbers of frequencies that read time, row and column."""
    rest = max(1, half * 3 // 8)
    return [half - 2 * rest, rest, rest]


def _of_qwen(family: str) -> TinyFamily:
    return TinyFamily(
        marker="<|vision_start|><|image_pad|><|vision_end|>",
        config=partial(_qwen, family),
        reader="Qwen2VL",
        reads=frame_reading(frames=1),
    )


_ALL: Mapping[str, TinyFamily] = {
    **{family: _of_qwen(family) for family in QWEN},
    "llava": TinyFamily(
        config=_llava,
        reader="CLIP",
        reads={"size": {"shortest_edge": LLAVA_SIDE}, "crop_size": square(LLAVA_SIDE)},
    ),
    "gemma3": TinyFamily(
        words=("<start_of_image>", "<end_of_image>", "<image_soft_token>"),
        marker="<start_of_image>",
        config=_gemma3,
        reader="Gemma3",
        reads={"size": square(GEMMA_SIDE)},
    ),
    "internvl": TinyFamily(
        words=("<img>", "</img>", "<IMG_CONTEXT>"),
        marker="<IMG_CONTEXT>",
        config=_internvl,
        reader="GotOcr2",
        reads={"size": square(TILE), "max_patches": 4},
    ),
    **WRITTEN,
}
"""Name -> the family."""


def family_of(name: str) -> TinyFamily:
    """Return what makes a family's models.

    Raises:
        ValueError: no family has this name.
    """
    if name not in _ALL:
        raise ValueError(f"unknown family {name!r}; expected one of {', '.join(_ALL)}")
    return _ALL[name]
