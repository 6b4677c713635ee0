"""Families of tiny image-text models that are written in a few lines each: words, configuration, image processor."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .tiny_gemma3n import WORDS as GEMMA3N_WORDS
from .tiny_gemma3n import tiny_gemma3n_config, tiny_gemma3n_processor

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedTokenizerFast

PATCH = 4
"""Pixels of a patch's side."""
MERGE = 2
"""Patches of the side of what becomes one feature."""
TILE = 16
"""Pixels of the side of the tiles of families that cut images, of which each is 4 tokens."""
LONGEST = {"idefics3": 2 * TILE, "smolvlm": 2 * TILE, "mistral3": 20}
"""Pixels to which a family changes the longer side of an image."""
PIXTRAL_PATCH = 2
"""Pixels of a patch's side of the tiny Mistral 3, of which 2 by 2 are one token: so small that no image of a test has
one token alone, which Transformers cannot compute."""
RESOLUTIONS = [[TILE, 2 * TILE], [2 * TILE, TILE], [2 * TILE, 2 * TILE]]
"""Heights and widths among which the tiny LLaVA-NeXT and LLaVA-OneVision choose."""
MOST_TILES = 2
"""Tiles of the tiny LLaVA-OneVision that have all of their features; those of more are interpolated."""

GLM_FAMILIES = ("glm4v", "glm46v", "glm4v_moe")
"""Families of GLM, whose images and words are the same."""
GEMMA4_WINDOW = 12
"""Tokens that a layer of the tiny Gemma 4 looks back: fewer than an image has."""
GEMMA4_TOKENS = 70
"""Largest number of tokens of an image of the tiny Gemma 4, the smallest one that its processor knows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TinyFamily:
    """Entries in which families differ."""

    words: tuple[str, ...]
    """Control tokens, beside those of the first families."""
    marker: str
    """Text that the chat template writes for an image."""
    config: Callable[
        [PreTrainedTokenizerFast, dict[str, Any], dict[str, Any], dict[str, Any]], PretrainedConfig
    ]
    """Returns the configuration from the tokenizer, the entries of text model and tower, and those of the whole."""
    processor: Callable[[], Any]
    """Returns the image processor."""


def _idefics3(
    tokenizer: PreTrainedTokenizerFast,
    text: dict[str, Any],
    vision: dict[str, Any],
    whole: dict[str, Any],
) -> PretrainedConfig:
    from transformers import Idefics3Config

    return Idefics3Config(**_of_tiles(tokenizer, text, vision), **whole)


def _smolvlm(
    tokenizer: PreTrainedTokenizerFast,
    text: dict[str, Any],
    vision: dict[str, Any],
    whole: dict[str, Any],
) -> PretrainedConfig:
    from transformers import SmolVLMConfig

    return SmolVLMConfig(**_of_tiles(tokenizer, text, vision), **whole)


def _of_tiles(
    tokenizer: PreTrainedTokenizerFast, text: dict[str, Any], vision: dict[str, Any]
) -> dict[str, Any]:
    return {
        "text_config": text | {"model_type": "llama"},
        "vision_config": vision | {"image_size": TILE, "patch_size": PATCH},
        "image_token_id": tokenizer.convert_tokens_to_ids("<image>"),
        "scale_factor": MERGE,
        "pad_token_id": text["pad_token_id"],
    }


def _mistral3(
    tokenizer: PreTrainedTokenizerFast,
    text: dict[str, Any],
    vision: dict[str, Any],
    whole: dict[str, Any],
) -> PretrainedConfig:
    from transformers import Mistral3Config

    return Mistral3Config(
        text_config=text | {"model_type": "mistral", "sliding_window": None},
        vision_config=vision | {"image_size": LONGEST["mistral3"], "patch_size": PIXTRAL_PATCH},
        image_token_index=tokenizer.convert_tokens_to_ids("[IMG]"),
        spatial_merge_size=MERGE,
        **whole,
    )


def _llava_next(
    tokenizer: PreTrainedTokenizerFast,
    text: dict[str, Any],
    vision: dict[str, Any],
    whole: dict[str, Any],
) -> PretrainedConfig:
    from transformers import LlavaNextConfig

    layers = vision["num_hidden_layers"] + 1  # the model reads the last layer but one
    own = {"image_size": TILE, "patch_size": PATCH * MERGE, "projection_dim": text["hidden_size"]}
    return LlavaNextConfig(
        text_config=text | {"model_type": "llama"},
        vision_config=vision | own | {"num_hidden_layers": layers},
        image_token_index=tokenizer.convert_tokens_to_ids("<image>"),
        image_grid_pinpoints=RESOLUTIONS,
        image_seq_length=(TILE // PATCH // MERGE) ** 2,
        **whole,
    )


def _llava_onevision(
    tokenizer: PreTrainedTokenizerFast,
    text: dict[str, Any],
    vision: dict[str, Any],
    whole: dict[str, Any],
) -> PretrainedConfig:
    from transformers import LlavaOnevisionConfig

    own = {"image_size": TILE, "patch_size": PATCH, "vision_use_head": False}
    return LlavaOnevisionConfig(
        text_config=text | {"model_type": "qwen2"},
        vision_config=vision | own | {"model_type": "siglip_vision_model"},
        image_token_index=tokenizer.convert_tokens_to_ids("<image>"),
        video_token_index=tokenizer.convert_tokens_to_ids("<video>"),
        image_grid_pinpoints=RESOLUTIONS,
        vision_aspect_ratio=f"anyres_max_{MOST_TILES}",
        **whole,
    )


def _gemma4(
    tokenizer: PreTrainedTokenizerFast,
    text: dict[str, Any],
    vision: dict[str, Any],
    whole: dict[str, Any],
) -> PretrainedConfig:
    from transformers import Gemma4Config

    half, width = text["num_hidden_layers"], text["hidden_size"]
    head_dim = width // text["num_attention_heads"]
    own = {
        "num_hidden_layers": 2 * half,
        # The second half has keys and values of the first, if that has a layer of each kind.
        "num_kv_shared_layers": half if half > 1 else 0,
        "layer_types": ["sliding_attention", "full_attention"] * half,
        "sliding_window": GEMMA4_WINDOW,
        "head_dim": head_dim,
        "global_head_dim": 2 * head_dim,
        "vocab_size_per_layer_input": text["vocab_size"],
        "hidden_size_per_layer_input": 8,
        "final_logit_softcapping": 30.0,
    }
    seen = {
        "num_key_value_heads": vision["num_attention_heads"],
        "head_dim": vision["hidden_size"] // vision["num_attention_heads"],
        "patch_size": PATCH,
        "pooling_kernel_size": MERGE,
        "position_embedding_size": 128,
        "use_clipped_linears": True,
    }
    names = ("boi", "image", "eoi", "video", "audio")
    ids = [tokenizer.convert_tokens_to_ids(word) for word in _GEMMA4]
    return Gemma4Config(
        text_config=text | own | whole,
        vision_config=vision | seen,
        **{f"{name}_token_id": token for name, token in zip(names, ids, strict=True)},
        **whole,
    )


def _glm(
    tokenizer: PreTrainedTokenizerFast,
    text: dict[str, Any],
    vision: dict[str, Any],
    whole: dict[str, Any],
) -> PretrainedConfig:
    from transformers import Glm4vConfig

    return Glm4vConfig(**_of_frames(tokenizer, text, vision), **whole)


def _glm46(
    tokenizer: PreTrainedTokenizerFast,
    text: dict[str, Any],
    vision: dict[str, Any],
    whole: dict[str, Any],
) -> PretrainedConfig:
    from transformers import Glm46VConfig

    return Glm46VConfig(**_of_frames(tokenizer, text, vision), **whole)


def _glm_moe(
    tokenizer: PreTrainedTokenizerFast,
    text: dict[str, Any],
    vision: dict[str, Any],
    whole: dict[str, Any],
) -> PretrainedConfig:
    from transformers import Glm4vMoeConfig

    experts = {"n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1}
    width = {"moe_intermediate_size": text["hidden_size"]}
    return Glm4vMoeConfig(**_of_frames(tokenizer, text | experts | width, vision), **whole)


def _of_frames(
    tokenizer: PreTrainedTokenizerFast, text: dict[str, Any], vision: dict[str, Any]
) -> dict[str, Any]:
    rope = {
        "rope_type": "default",
        "rope_theta": 10_000.0,
        "partial_rotary_factor": 0.5,
        "mrope_section": [0, 1, 1],
    }
    own = {
        "depth": vision["num_hidden_layers"],
        "num_heads": vision["num_attention_heads"],
        "image_size": 8 * PATCH,
        "patch_size": PATCH,
        "spatial_merge_size": MERGE,
        "temporal_patch_size": 2,
        "out_hidden_size": text["hidden_size"],
    }
    kept = ("hidden_size", "intermediate_size", "initializer_range")
    words = {
        "image_token_id": "<|image|>",
        "video_token_id": "<|video|>",
        "image_start_token_id": "<|begin_of_image|>",
        "image_end_token_id": "<|end_of_image|>",
        "video_start_token_id": "<|begin_of_video|>",
        "video_end_token_id": "<|end_of_video|>",
    }
    return {
        # As published files have it: vLLM reads whether attention has biases, which Transformers always makes.
        "text_config": text | {"rope_parameters": rope, "attention_bias": True},
        "vision_config": own | {name: vision[name] for name in kept},
        **{name: tokenizer.convert_tokens_to_ids(word) for name, word in words.items()},
    }


def _tile_processor(family: str) -> Any:
    from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil
    from transformers.models.smolvlm.image_processing_pil_smolvlm import SmolVLMImageProcessorPil

    kind = SmolVLMImageProcessorPil if family == "smolvlm" else Idefics3ImageProcessorPil
    longest = {"longest_edge": LONGEST[family]}
    return kind(size=longest, max_image_size={"longest_edge": TILE})


def _pixtral_processor() -> Any:
    from transformers.models.pixtral.image_processing_pil_pixtral import PixtralImageProcessorPil

    square = {"height": PIXTRAL_PATCH, "width": PIXTRAL_PATCH}
    return PixtralImageProcessorPil(size={"longest_edge": LONGEST["mistral3"]}, patch_size=square)


def _llava_next_processor() -> Any:
    from transformers.models.llava_next.image_processing_pil_llava_next import (
        LlavaNextImageProcessorPil,
    )

    square = {"height": TILE, "width": TILE}
    return LlavaNextImageProcessorPil(
        size={"shortest_edge": TILE}, crop_size=square, image_grid_pinpoints=RESOLUTIONS
    )


def _llava_onevision_processor() -> Any:
    from transformers.models.llava_onevision.image_processing_pil_llava_onevision import (
        LlavaOnevisionImageProcessorPil,
    )

    square = {"height": TILE, "width": TILE}
    return LlavaOnevisionImageProcessorPil(size=square, image_grid_pinpoints=RESOLUTIONS)


def _gemma4_processor() -> Any:
    from transformers.models.gemma4.image_processing_pil_gemma4 import Gemma4ImageProcessorPil

    return Gemma4ImageProcessorPil(
        patch_size=PATCH, pooling_kernel_size=MERGE, max_soft_tokens=GEMMA4_TOKENS
    )


def _glm_processor(family: str) -> Any:
    from transformers.models.glm4v.image_processing_pil_glm4v import Glm4vImageProcessorPil
    from transformers.models.glm46v.image_processing_pil_glm46v import Glm46VImageProcessorPil

    kind = Glm46VImageProcessorPil if family == "glm46v" else Glm4vImageProcessorPil
    area = 2 * (PATCH * MERGE) ** 2  # of the two frames that an image counts as
    return kind(
        patch_size=PATCH,
        merge_size=MERGE,
        temporal_patch_size=2,
        size={"shortest_edge": area, "longest_edge": 256 * area},
    )


_GLM = (
    *("<|image|>", "<|video|>", "<|begin_of_image|>", "<|end_of_image|>"),
    *("<|begin_of_video|>", "<|end_of_video|>"),
)
_CUT = (
    *("<fake_token_around_image>", "<global-img>"),
    *(f"<row_{row}_col_{column}>" for row in (1, 2) for column in (1, 2)),
)
_GEMMA4 = ("<|image>", "<|image|>", "<image|>", "<|video|>", "<|audio|>")
WRITTEN: Mapping[str, TinyFamily] = {
    "idefics3": TinyFamily(
        words=_CUT,
        marker="<image>",
        config=_idefics3,
        processor=lambda: _tile_processor("idefics3"),
    ),
    "smolvlm": TinyFamily(
        words=_CUT,
        marker="<image>",
        config=_smolvlm,
        processor=lambda: _tile_processor("smolvlm"),
    ),
    "mistral3": TinyFamily(
        words=("[IMG]", "[IMG_BREAK]", "[IMG_END]"),
        marker="[IMG]",
        config=_mistral3,
        processor=_pixtral_processor,
    ),
    "llava_next": TinyFamily(
        words=(), marker="<image>", config=_llava_next, processor=_llava_next_processor
    ),
    "llava_onevision": TinyFamily(
        words=("<video>",),
        marker="<image>",
        config=_llava_onevision,
        processor=_llava_onevision_processor,
    ),
    "gemma3n": TinyFamily(
        words=GEMMA3N_WORDS,
        marker="<image_soft_token>",
        config=tiny_gemma3n_config,
        processor=tiny_gemma3n_processor,
    ),
    "gemma4": TinyFamily(
        words=_GEMMA4, marker="<|image|>", config=_gemma4, processor=_gemma4_processor
    ),
    "glm4v": TinyFamily(
        words=_GLM,
        marker="<|begin_of_image|><|image|><|end_of_image|>",
        config=_glm,
        processor=lambda: _glm_processor("glm4v"),
    ),
    "glm46v": TinyFamily(
        words=_GLM,
        marker="<|begin_of_image|><|image|><|end_of_image|>",
        config=_glm46,
        processor=lambda: _glm_processor("glm46v"),
    ),
    "glm4v_moe": TinyFamily(
        words=_GLM,
        marker="<|begin_of_image|><|image|><|end_of_image|>",
        config=_glm_moe,
        processor=lambda: _glm_processor("glm4v"),
    ),
}
"""Name -> the family."""
