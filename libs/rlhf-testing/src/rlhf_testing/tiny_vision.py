"""Tiny image-text models with random weights, a character tokenizer and real image processors, as folders.

The loading code of real models reads these folders, and nothing is downloaded.
"""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .tiny import ALPHABET, linear_attention, tiny_tokenizer
from .tiny_vision_families import MERGE, PATCH, TILE, WRITTEN

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
WORDS_OF = {
    "gemma3": ("<start_of_image>", "<end_of_image>", "<image_soft_token>"),
    "internvl": ("<img>", "</img>", "<IMG_CONTEXT>"),
    **{name: family.words for name, family in WRITTEN.items()},
}
"""Further control tokens of a family."""
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
MARKERS = {
    "llava": "<image>",
    "gemma3": "<start_of_image>",
    "internvl": "<IMG_CONTEXT>",
    **{name: family.marker for name, family in WRITTEN.items()},
}
"""Text that a family's template writes for an image, where it is not that of the Qwen families."""
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
    """Write the image processor of a tiny model of ``family`` into its folder."""
    _processor(family).save_pretrained(folder)


def tiny_vision_tokenizer(
    alphabet: str = ALPHABET, family: str = "qwen2_5_vl"
) -> PreTrainedTokenizerFast:
    """Return the tiny tokenizer with the control tokens and a chat template of image-text models."""
    tokenizer = tiny_tokenizer(alphabet, family)
    words = [*WORDS, *WORDS_OF.get(family, ())]
    tokenizer.add_special_tokens({"additional_special_tokens": words})
    tokenizer.eos_token = "<|im_end|>"
    marker = MARKERS.get(family, "<|vision_start|><|image_pad|><|vision_end|>")
    video = marker.replace("image", "video") if family in QWEN else ""
    tokenizer.chat_template = CHAT_TEMPLATE.replace("IMAGE", marker).replace("VIDEO", video)
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
        ValueError: the family is not one of ``VISION_FAMILIES`` or ``MORE_VISION_FAMILIES``.
    """
    head_dim = hidden_size // num_heads
    text: dict[str, Any] = {
        "vocab_size": len(tokenizer),
        "hidden_size": hidden_size,
        "intermediate_size": 4 * hidden_size,
        "num_hidden_layers": num_layers,
        "num_attention_heads": num_heads,
        "num_key_value_heads": max(1, num_heads // 2),
        "max_position_embeddings": 1024,
        "initializer_range": initializer_range,
        "tie_word_embeddings": tied,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": tokenizer.eos_token_id,
    }
    vision: dict[str, Any] = {
        "hidden_size": hidden_size,
        "intermediate_size": 2 * hidden_size,
        "initializer_range": initializer_range,
    }
    of_squares = {"llava": _llava, "gemma3": _gemma3, "internvl": _internvl}
    if family in of_squares:
        return of_squares[family](tokenizer, text, vision, vision_layers, tied)
    if family in WRITTEN:
        tower = vision | {"num_hidden_layers": vision_layers, "num_attention_heads": 2}
        return WRITTEN[family].config(tokenizer, text, tower, {"tie_word_embeddings": tied})
    if family in QWEN:
        return _qwen(family, tokenizer, text, vision, vision_layers, head_dim, tied)
    known = ", ".join((*VISION_FAMILIES, *MORE_VISION_FAMILIES))
    raise ValueError(f"unknown family {family!r}; expected one of {known}")


def _qwen(
    family: str,
    tokenizer: PreTrainedTokenizerFast,
    text: dict[str, Any],
    vision: dict[str, Any],
    layers: int,
    head_dim: int,
    tied: bool,
) -> PretrainedConfig:
    from transformers import (
        Qwen2_5_VLConfig,
        Qwen2VLConfig,
        Qwen3_5Config,
        Qwen3_5MoeConfig,
        Qwen3VLConfig,
        Qwen3VLMoeConfig,
    )

    text["rope_parameters"] = {
        "rope_type": "default",
        "rope_theta": 10_000.0,
        "mrope_section": _sections(head_dim // 2),
    }
    vision |= {
        "depth": layers,
        "num_heads": 2,
        "patch_size": PATCH,
        "spatial_merge_size": MERGE,
        "temporal_patch_size": 2,
        "out_hidden_size": text["hidden_size"],
    }
    names = ("image_pad", "video_pad", "vision_start", "vision_end")
    ids = [tokenizer.convert_tokens_to_ids(f"<|{name}|>") for name in names]
    common: dict[str, Any] = {
        "image_token_id": ids[0],
        "video_token_id": ids[1],
        "vision_start_token_id": ids[2],
        "vision_end_token_id": ids[3],
        "tie_word_embeddings": tied,
    }
    if family.endswith("_moe"):
        text |= {"num_experts": 4, "num_experts_per_tok": 2}
        text |= {"moe_intermediate_size": 2 * text["hidden_size"]}
    if family in ("qwen3_vl", "qwen3_vl_moe"):
        text["head_dim"] = head_dim
        # As the real ones say: Transformers always mixes the axes so, and vLLM does where it is written.
        text["rope_parameters"]["mrope_interleaved"] = True
        vision |= {"num_position_embeddings": 64, "deepstack_visual_indexes": [0]}
        if family == "qwen3_vl_moe":
            text["norm_topk_prob"] = (
                True  # as published files have it: vLLM reads it, Transformers does not
            )
        kind = Qwen3VLMoeConfig if family == "qwen3_vl_moe" else Qwen3VLConfig
        return kind(text_config=text, vision_config=vision, **common)
    if family in ("qwen3_5", "qwen3_5_moe"):
        count = text["num_hidden_layers"]
        kinds = ["full_attention" if layer % 2 else "linear_attention" for layer in range(count)]
        text |= {"head_dim": head_dim, "layer_types": kinds}
        text |= linear_attention(text["hidden_size"], text["num_attention_heads"])
        text["rope_parameters"] |= {"mrope_interleaved": True, "partial_rotary_factor": 0.5}
        text["rope_parameters"]["mrope_section"] = _sections(head_dim // 4)
        vision |= {"num_position_embeddings": 64}
        if family == "qwen3_5":
            return Qwen3_5Config(text_config=text, vision_config=vision, **common)
        del text["intermediate_size"]
        text["shared_expert_intermediate_size"] = text["hidden_size"]
        return Qwen3_5MoeConfig(text_config=text, vision_config=vision, **common)
    if family == "qwen2_vl":
        vision |= {"embed_dim": vision["hidden_size"], "hidden_size": vision.pop("out_hidden_size")}
        del vision["intermediate_size"]
        return Qwen2VLConfig(text_config=text, vision_config=vision | {"mlp_ratio": 2}, **common)
    vision |= {"window_size": 4 * PATCH, "fullatt_block_indexes": [layers - 1]}
    return Qwen2_5_VLConfig(text_config=text, vision_config=vision, **common)


def _llava(
    tokenizer: PreTrainedTokenizerFast,
    text: dict[str, Any],
    vision: dict[str, Any],
    layers: int,
    tied: bool,
) -> PretrainedConfig:
    from transformers import CLIPVisionConfig, LlamaConfig, LlavaConfig

    tower = CLIPVisionConfig(
        **vision,
        num_hidden_layers=layers + 1,  # the model reads the last layer but one
        num_attention_heads=2,
        image_size=LLAVA_SIDE,
        patch_size=PATCH * MERGE,
        projection_dim=text["hidden_size"],
    )
    return LlavaConfig(
        text_config=LlamaConfig(**text),
        vision_config=tower,
        image_token_index=tokenizer.convert_tokens_to_ids("<image>"),
        tie_word_embeddings=tied,
    )


def _gemma3(
    tokenizer: PreTrainedTokenizerFast,
    text: dict[str, Any],
    vision: dict[str, Any],
    layers: int,
    tied: bool,
) -> PretrainedConfig:
    from transformers import Gemma3Config, Gemma3TextConfig, SiglipVisionConfig

    head_dim = text["hidden_size"] // text["num_attention_heads"]
    count = text["num_hidden_layers"]
    windowed = ["full_attention" if layer % 2 else "sliding_attention" for layer in range(count)]
    tower = SiglipVisionConfig(
        **vision,
        num_hidden_layers=layers,
        num_attention_heads=2,
        image_size=GEMMA_SIDE,
        patch_size=PATCH,
        vision_use_head=False,
    )
    begin, end, feature = (tokenizer.convert_tokens_to_ids(word) for word in WORDS_OF["gemma3"])
    return Gemma3Config(
        text_config=Gemma3TextConfig(
            **text,
            head_dim=head_dim,
            query_pre_attn_scalar=head_dim,
            sliding_window=GEMMA_WINDOW,
            layer_types=windowed,
        ),
        vision_config=tower,
        mm_tokens_per_image=(GEMMA_SIDE // PATCH // MERGE) ** 2,
        boi_token_index=begin,
        eoi_token_index=end,
        image_token_index=feature,
        tie_word_embeddings=tied,
    )


def _internvl(
    tokenizer: PreTrainedTokenizerFast,
    text: dict[str, Any],
    vision: dict[str, Any],
    layers: int,
    tied: bool,
) -> PretrainedConfig:
    from transformers import InternVLConfig, InternVLVisionConfig, Qwen2Config

    tower = InternVLVisionConfig(
        **vision,
        num_hidden_layers=layers,
        num_attention_heads=2,
        image_size=TILE,
        patch_size=PATCH,
    )
    return InternVLConfig(
        text_config=Qwen2Config(**text),
        vision_config=tower,
        image_token_id=tokenizer.convert_tokens_to_ids("<IMG_CONTEXT>"),
        image_seq_length=(TILE // PATCH // MERGE) ** 2,
        tie_word_embeddings=tied,
    )


def _sections(half: int) -> list[int]:
    """Return the numbers of frequencies that read time, row and column."""
    rest = max(1, half * 3 // 8)
    return [half - 2 * rest, rest, rest]


def _processor(family: str) -> Any:
    from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
    from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil
    from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import GotOcr2ImageProcessorPil
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    if family in WRITTEN:
        return WRITTEN[family].processor()
    if family == "gemma3":
        return Gemma3ImageProcessorPil(size={"height": GEMMA_SIDE, "width": GEMMA_SIDE})
    if family == "internvl":
        return GotOcr2ImageProcessorPil(size={"height": TILE, "width": TILE}, max_patches=4)
    if family == "llava":
        square = {"height": LLAVA_SIDE, "width": LLAVA_SIDE}
        return CLIPImageProcessorPil(size={"shortest_edge": LLAVA_SIDE}, crop_size=square)
    area = (PATCH * MERGE) ** 2
    return Qwen2VLImageProcessorPil(
        patch_size=PATCH,
        merge_size=MERGE,
        temporal_patch_size=2,
        size={"shortest_edge": area, "longest_edge": 256 * area},
    )
