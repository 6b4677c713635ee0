"""Processors and tokenizers of image-text models, and the error texts where they are missing or another model's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from transformers import (
    AutoImageProcessor,
    AutoModelForImageTextToText,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from rlhf_core import ConfigError, headline

from ..config import VlmConfig

ONE_SIZE = "sees all images at one size"
NO_TILES = "cuts no image into tiles"
OWN_SIZES = "chooses the size of an image by its shape alone"
"""Sizes at which a model sees images where no limit changes them, for messages."""


def load_image_processor(path: str, *, trust_remote_code: bool) -> Any:
    """Return the image processor of a folder or hub name, which works on images of Pillow.

    Raises:
        ConfigError: there is none, or it cannot be read.
    """
    try:
        return AutoImageProcessor.from_pretrained(
            path, trust_remote_code=trust_remote_code, backend="pil"
        )
    except Exception as error:  # Transformers checks little of what the files hold
        raise ConfigError(
            f"model {path}: expected an image processor (preprocessor_config.json); loading it failed: "
            f"{headline(error)}",
            code="image/no-processor",
        ) from error


def load_image_text_model(path: str, **options: Any) -> tuple[PreTrainedModel, dict[str, Any]]:
    """Return the image-text model of a path, and the information on its loading."""
    model, info = AutoModelForImageTextToText.from_pretrained(path, **options)
    return model, info


def load_tokenizer(path: str, *, trust_remote_code: bool) -> PreTrainedTokenizerBase:
    """Return the tokenizer of a path."""
    tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
        path, trust_remote_code=trust_remote_code
    )
    return tokenizer


def token_ids(path: str, words: Mapping[str, int | None], *, trust_remote_code: bool) -> list[int]:
    """Return the tokens of words that stand for images.

    Args:
        words: each with its token in config.json; None: config.json has none.

    Raises:
        ConfigError: the tokenizer lacks a word, or has another token for it.
    """
    tokenizer = load_tokenizer(path, trust_remote_code=trust_remote_code)
    known = tokenizer.get_vocab()
    for word, wanted in words.items():
        found = known.get(word)
        if found is None or wanted not in (None, found):
            config = "with a token of its own" if wanted is None else f"as {wanted}"
            raise ConfigError(
                f"model {path}: its tokenizer has {word} as {found}, and the model reads it {config}; expected the "
                "tokenizer that belongs to the model",
                code="image/processor-differs",
            )
    return [known[word] for word in words]


def start_of_texts(path: str, *, trust_remote_code: bool) -> tuple[int, ...]:
    """Return the tokens with which the tokenizer begins a text: the one that begins sequences, or none.

    A processor of Transformers lets it, where the chat template does not write that token itself.
    """
    tokenizer = load_tokenizer(path, trust_remote_code=trust_remote_code)
    first: list[int] = tokenizer("", add_special_tokens=True, verbose=False)["input_ids"][:1]
    return tuple(first) if first == [tokenizer.bos_token_id] else ()


def require_equal(path: str, what: str, processor: Any, model: Any) -> None:
    """Refuse a processor that is another model's.

    Raises:
        ConfigError: a number of the processor is another than the model's.
    """
    if processor != model:
        raise ConfigError(
            f"model {path}: its image processor has {what} {processor}, and the model {model}; expected the processor "
            "that belongs to the model. Copy preprocessor_config.json from the model's own repository.",
            code="image/processor-differs",
        )


def require_size(path: str, processor: Any, model: tuple[int, int]) -> None:
    """Refuse a processor that makes images of another size than the model reads.

    Args:
        model: height and width that the model reads, in pixels.

    Raises:
        ConfigError: the sizes differ.
    """
    made = getattr(processor, "crop_size", None) or processor.size
    height, width = int(made["height"]), int(made["width"])
    if (height, width) != model:
        raise ConfigError(
            f"model {path}: its image processor makes images of {width} x {height} pixels, and the model reads "
            f"{model[1]} x {model[0]}; expected the processor that belongs to the model",
            code="image/size-differs",
        )


def require_longest(path: str, processor: Any) -> int:
    """Return the pixels to which an image processor changes the longer side of an image.

    Raises:
        ConfigError: it does not.
    """
    longest = dict(processor.size).get("longest_edge")
    if longest is None or not processor.do_resize:
        raise ConfigError(
            f"model {path}: its image processor leaves the sizes of images as they are, or gives all one size "
            "(do_resize, size); expected a size with longest_edge, as the processors of this family have",
            code="image/processor-differs",
        )
    return int(longest)


def require_no_limits(
    path: str, family: str, options: VlmConfig, sees: str = ONE_SIZE, tiles: str = NO_TILES
) -> None:
    """Refuse limits on the area and the tiles of images for a family that has sizes of its own.

    Args:
        sees: which ones, for the message.
        tiles: what it does with tiles, for the message.

    Raises:
        ConfigError: a limit is set.
    """
    require_no_tiles(path, family, options, tiles)
    if options.min_pixels is not None or options.max_pixels is not None:
        raise ConfigError(
            f"--model.vlm.max_pixels: the model {path} ({family}) {sees}; leave min_pixels and max_pixels out",
            code="image/fixed-size",
        )


def require_no_tiles(path: str, family: str, options: VlmConfig, tiles: str = NO_TILES) -> None:
    """Refuse a number of tiles for a family that cuts no image into tiles, or has numbers of its own.

    Raises:
        ConfigError: it is set.
    """
    if options.max_tiles is not None:
        raise ConfigError(
            f"--model.vlm.max_tiles: the model {path} ({family}) {tiles}; leave it out",
            code="image/limit",
        )
