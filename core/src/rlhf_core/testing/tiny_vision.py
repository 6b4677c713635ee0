"""Tiny image-text models with random weights, a character tokenizer and real image processors, as folders.

The loading code of real models reads these folders, and nothing is downloaded.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from .tiny import ALPHABET, tiny_tokenizer

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedTokenizerFast

WORDS = (
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
"""Control tokens of the Qwen families beside those of the tiny tokenizer."""
CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n"
    "{% if m['content'] is string %}{{ m['content'] }}{% else %}{% for part in m['content'] %}"
    "{% if part['type'] == 'image' or 'image' in part %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% elif 'text' in part %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""A template that does with images and text what Qwen2.5-VL's does."""
PATCH, MERGE = 4, 2
"""Pixels of a patch's side, and patches of the side of what becomes one feature."""
VISION_FAMILIES = ("qwen2_5_vl",)


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
    folder. An image of 8 by 8 pixels is one token.

    Args:
        family: one of ``VISION_FAMILIES``.
        alphabet: characters that the tokenizer knows, one token each.
        vision_layers: layers of the part that reads pixels.
        initializer_range: standard deviation of the random weights; narrow models learn faster with more than 0.02.
        seed: seed of the weights; the global random state stays as it is.
    """
    import torch
    from transformers import AutoModelForImageTextToText

    tokenizer = tiny_vision_tokenizer(alphabet)
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
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    _processor(family).save_pretrained(folder)
    return folder


def tiny_vision_tokenizer(alphabet: str = ALPHABET) -> PreTrainedTokenizerFast:
    """Return the tiny tokenizer with the control tokens and a chat template of image-text models."""
    tokenizer = tiny_tokenizer(alphabet)
    tokenizer.add_special_tokens({"additional_special_tokens": list(WORDS)})
    tokenizer.eos_token = "<|im_end|>"
    tokenizer.chat_template = CHAT_TEMPLATE
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
        ValueError: the family is not one of ``VISION_FAMILIES``.
    """
    from transformers import Qwen2_5_VLConfig

    ids = {word.strip("<|>"): tokenizer.convert_tokens_to_ids(word) for word in WORDS}
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
        "eos_token_id": ids["im_end"],
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10_000.0,
            "mrope_section": _sections(head_dim // 2),
        },
    }
    vision: dict[str, Any] = {
        "depth": vision_layers,
        "hidden_size": hidden_size,
        "intermediate_size": 2 * hidden_size,
        "num_heads": 2,
        "patch_size": PATCH,
        "spatial_merge_size": MERGE,
        "temporal_patch_size": 2,
        "out_hidden_size": hidden_size,
        "initializer_range": initializer_range,
    }
    if family == "qwen2_5_vl":
        return Qwen2_5_VLConfig(
            text_config=text,
            vision_config=vision
            | {"window_size": 4 * PATCH, "fullatt_block_indexes": [vision_layers - 1]},
            image_token_id=ids["image_pad"],
            video_token_id=ids["video_pad"],
            vision_start_token_id=ids["vision_start"],
            vision_end_token_id=ids["vision_end"],
            tie_word_embeddings=tied,
        )
    raise ValueError(f"unknown family {family!r}; expected one of {', '.join(VISION_FAMILIES)}")


def _sections(half: int) -> list[int]:
    """Return the numbers of frequencies that read time, row and column."""
    rest = max(1, half * 3 // 8)
    return [half - 2 * rest, rest, rest]


def _processor(family: str) -> Any:
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    assert family in VISION_FAMILIES
    area = (PATCH * MERGE) ** 2
    return Qwen2VLImageProcessorPil(
        patch_size=PATCH,
        merge_size=MERGE,
        temporal_patch_size=2,
        size={"shortest_edge": area, "longest_edge": 256 * area},
    )
