"""Families of tiny image-text models that are written in a few lines each: words, configuration, image processor."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from .tiny_gemma3n import SIDE as GEMMA3N_SIDE
from .tiny_gemma3n import WORDS as GEMMA3N_WORDS
from .tiny_gemma3n import gemma3n_entries

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
class Parts:
    """Parts of which a family's configuration is made, as entries of it."""

    id_of: Callable[[str], int]
    """Returns the token id of a control word."""
    text: dict[str, Any]
    vision: dict[str, Any]
    """Entries of the tower."""

    @property
    def frames(self) -> dict[str, Any]:
        """Entries of a tower that reads two frames at once and joins squares of patches, as those of Qwen and GLM."""
        names = ("hidden_size", "intermediate_size", "initializer_range")
        return {name: self.vision[name] for name in names} | {
            "depth": self.vision["num_hidden_layers"],
            "num_heads": self.vision["num_attention_heads"],
            "patch_size": PATCH,
            "spatial_merge_size": MERGE,
            "temporal_patch_size": 2,
            "out_hidden_size": self.text["hidden_size"],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class TinyFamily:
    """Entries in which families differ."""

    words: tuple[str, ...] = ()
    """Control tokens, beside those of the first families."""
    marker: str = "<image>"
    """Text that the chat template writes for an image."""
    config: Callable[[Parts], Mapping[str, Any]]
    """Returns the entries of the configuration."""
    reader: str
    """The image processor: the name of its class before ``ImageProcessorPil``."""
    reads: Mapping[str, Any] = field(default_factory=dict)
    """Entries of the image processor."""


def square(side: int) -> dict[str, int]:
    """Return the size of a square image as image processors have it."""
    return {"height": side, "width": side}


def frame_reading(frames: int) -> dict[str, Any]:
    """Return the entries of an image processor of models that read two frames at once.

    Args:
        frames: as how many frames an image counts where the pixels of a token are counted.
    """
    area = frames * (PATCH * MERGE) ** 2
    size = {"shortest_edge": area, "longest_edge": 256 * area}
    return {"patch_size": PATCH, "merge_size": MERGE, "temporal_patch_size": 2, "size": size}


def _of_tiles(parts: Parts) -> dict[str, Any]:
    return {
        "text_config": parts.text | {"model_type": "llama"},
        "vision_config": parts.vision | {"image_size": TILE, "patch_size": PATCH},
        "image_token_id": parts.id_of("<image>"),
        "scale_factor": MERGE,
        "pad_token_id": parts.text["pad_token_id"],
    }


def _mistral3(parts: Parts) -> dict[str, Any]:
    own = {"image_size": LONGEST["mistral3"], "patch_size": PIXTRAL_PATCH}
    return {
        "text_config": parts.text | {"model_type": "mistral", "sliding_window": None},
        "vision_config": parts.vision | own,
        "image_token_index": parts.id_of("[IMG]"),
        "spatial_merge_size": MERGE,
    }


def _llava_next(parts: Parts) -> dict[str, Any]:
    own = {
        "num_hidden_layers": parts.vision["num_hidden_layers"] + 1,  # the last one is not read
        "image_size": TILE,
        "patch_size": PATCH * MERGE,
        "projection_dim": parts.text["hidden_size"],
    }
    return {
        "text_config": parts.text | {"model_type": "llama"},
        "vision_config": parts.vision | own,
        "image_token_index": parts.id_of("<image>"),
        "image_grid_pinpoints": RESOLUTIONS,
        "image_seq_length": (TILE // PATCH // MERGE) ** 2,
    }


def _llava_onevision(parts: Parts) -> dict[str, Any]:
    own = {"image_size": TILE, "patch_size": PATCH, "vision_use_head": False}
    return {
        "text_config": parts.text | {"model_type": "qwen2"},
        "vision_config": parts.vision | own | {"model_type": "siglip_vision_model"},
        "image_token_index": parts.id_of("<image>"),
        "video_token_index": parts.id_of("<video>"),
        "image_grid_pinpoints": RESOLUTIONS,
        "vision_aspect_ratio": f"anyres_max_{MOST_TILES}",
    }


def _gemma3n(parts: Parts) -> dict[str, Any]:
    return gemma3n_entries(parts.id_of, parts.text)


def _gemma4(parts: Parts) -> dict[str, Any]:
    half, width = parts.text["num_hidden_layers"], parts.text["hidden_size"]
    head_dim = width // parts.text["num_attention_heads"]
    own = {
        "num_hidden_layers": 2 * half,
        # The second half has keys and values of the first, if that has a layer of each kind.
        "num_kv_shared_layers": half if half > 1 else 0,
        "layer_types": ["sliding_attention", "full_attention"] * half,
        "sliding_window": GEMMA4_WINDOW,
        "head_dim": head_dim,
        "global_head_dim": 2 * head_dim,
        "vocab_size_per_layer_input": parts.text["vocab_size"],
        "hidden_size_per_layer_input": 8,
        "final_logit_softcapping": 30.0,
    }
    heads = parts.vision["num_attention_heads"]
    seen = {
        "num_key_value_heads": heads,
        "head_dim": parts.vision["hidden_size"] // heads,
        "patch_size": PATCH,
        "pooling_kernel_size": MERGE,
        "position_embedding_size": 128,
        "use_clipped_linears": True,
    }
    names = ("boi", "image", "eoi", "video", "audio")
    return {
        "text_config": parts.text | own,
        "vision_config": parts.vision | seen,
        **{
            f"{name}_token_id": parts.id_of(word) for name, word in zip(names, _GEMMA4, strict=True)
        },
    }


def _glm(parts: Parts) -> dict[str, Any]:
    rope = {
        "rope_type": "default",
        "rope_theta": 10_000.0,
        "partial_rotary_factor": 0.5,
        "mrope_section": [0, 1, 1],
    }
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
        "text_config": parts.text | {"rope_parameters": rope, "attention_bias": True},
        "vision_config": parts.frames | {"image_size": 8 * PATCH},
        **{name: parts.id_of(word) for name, word in words.items()},
    }


def _glm_moe(parts: Parts) -> dict[str, Any]:
    made = _glm(parts)
    made["text_config"] |= {"n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1}
    made["text_config"]["moe_intermediate_size"] = parts.text["hidden_size"]
    return made


_GLM = (
    *("<|image|>", "<|video|>", "<|begin_of_image|>", "<|end_of_image|>"),
    *("<|begin_of_video|>", "<|end_of_video|>"),
)
_CUT = (
    *("<fake_token_around_image>", "<global-img>"),
    *(f"<row_{row}_col_{column}>" for row in (1, 2) for column in (1, 2)),
)
_GEMMA4 = ("<|image>", "<|image|>", "<image|>", "<|video|>", "<|audio|>")


def _cut(reader: str) -> TinyFamily:
    """Return a family that cuts images into tiles."""
    size = {"longest_edge": LONGEST[reader.lower()]}
    reads = {"size": size, "max_image_size": {"longest_edge": TILE}}
    return TinyFamily(words=_CUT, config=_of_tiles, reader=reader, reads=reads)


def _of_glm(config: Callable[[Parts], Mapping[str, Any]], reader: str = "Glm4v") -> TinyFamily:
    """Return a family of GLM, for which an image counts as two frames."""
    marker = "<|begin_of_image|><|image|><|end_of_image|>"
    reads = frame_reading(frames=2)
    return TinyFamily(words=_GLM, marker=marker, config=config, reader=reader, reads=reads)


WRITTEN: Mapping[str, TinyFamily] = {
    "idefics3": _cut("Idefics3"),
    "smolvlm": _cut("SmolVLM"),
    "mistral3": TinyFamily(
        words=("[IMG]", "[IMG_BREAK]", "[IMG_END]"),
        marker="[IMG]",
        config=_mistral3,
        reader="Pixtral",
        reads={
            "size": {"longest_edge": LONGEST["mistral3"]},
            "patch_size": square(PIXTRAL_PATCH),
        },
    ),
    "llava_next": TinyFamily(
        config=_llava_next,
        reader="LlavaNext",
        reads={
            "size": {"shortest_edge": TILE},
            "crop_size": square(TILE),
            "image_grid_pinpoints": RESOLUTIONS,
        },
    ),
    "llava_onevision": TinyFamily(
        words=("<video>",),
        config=_llava_onevision,
        reader="LlavaOnevision",
        reads={"size": square(TILE), "image_grid_pinpoints": RESOLUTIONS},
    ),
    "gemma3n": TinyFamily(
        words=GEMMA3N_WORDS,
        marker="<image_soft_token>",
        config=_gemma3n,
        reader="Siglip",
        reads={"size": square(GEMMA3N_SIDE)},
    ),
    "gemma4": TinyFamily(
        words=_GEMMA4,
        marker="<|image|>",
        config=_gemma4,
        reader="Gemma4",
        reads={
            "patch_size": PATCH,
            "pooling_kernel_size": MERGE,
            "max_soft_tokens": GEMMA4_TOKENS,
        },
    ),
    "glm4v": _of_glm(_glm),
    "glm46v": _of_glm(_glm, "Glm46V"),
    "glm4v_moe": _of_glm(_glm_moe),
}
"""Name -> the family."""
