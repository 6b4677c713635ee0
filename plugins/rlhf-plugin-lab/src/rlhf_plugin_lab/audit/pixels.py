"""Images of a sequence as Transformers' own processor makes them, and the ways in which a model may get others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlhf_core import ConfigError
from rlhf_core.lazy import torch
from rlhf_core.media import MediaProblem, decode

if TYPE_CHECKING:
    from PIL.Image import Image
    from transformers import PreTrainedModel

FAMILIES = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe")
"""Families whose images are patches and grids, with a token for each square of patches."""


class Order(StrEnum):
    """Orders of an image's patches."""

    BLOCKS = "blocks"
    """One square of patches after the other, as the model reads them."""
    ROWS = "rows"
    """Row by row."""
    REVERSED = "reversed"
    TRANSPOSED = "transposed"
    """Rows and columns exchanged."""


class Blind(StrEnum):
    """Replacements of pixels."""

    NOTHING = "nothing"
    """None: the model sees."""
    PLACES = "places"
    """The embeddings of the tokens that stand for images, at the images' positions."""
    TEXT = "text"
    """Embeddings of these tokens, at positions of text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pixels:
    """Images as a model gets them. The defaults are what the processor's file says."""

    processor: Any
    """An image processor of Transformers, which has no types."""
    feature_id: int
    """Token that stands for a square of patches."""
    processing: Mapping[str, Any] = field(default_factory=dict)
    """Options of the processor in the place of those of its file."""
    change: Callable[[Image], Image] | None = None
    """Change of an image before it is processed."""
    order: Order = Order.BLOCKS
    factor: float = 1.0
    """Factor of the processed numbers."""
    instead: Mapping[Path, Path] = field(default_factory=dict)
    """Image -> the image that is seen in its place."""
    reverse: bool = False
    blind: Blind = Blind.NOTHING

    def inputs(self, token_ids: torch.Tensor, images: Sequence[Path]) -> dict[str, torch.Tensor]:
        """Return (1, S) ids as the model takes them, with their images.

        Raises:
            ConfigError: an image is missing, or has another number of tokens than the sequence.
        """
        is_feature = token_ids == self.feature_id
        inputs = {"input_ids": token_ids[None], "mm_token_type_ids": is_feature.int()[None]}
        if self.blind is Blind.TEXT or not images:
            return inputs | {"mm_token_type_ids": torch.zeros_like(is_feature).int()[None]}
        shown = [self.instead.get(path, path) for path in images]
        made = self.processor(
            images=[self._opened(path) for path in (reversed(shown) if self.reverse else shown)],
            return_tensors="pt",
            **self.processing,
        )
        grids = made["image_grid_thw"]
        count = int(grids.prod(dim=1).sum()) // self.processor.merge_size**2
        if count != int(is_feature.sum()):
            raise ConfigError(
                f"rlhf audit: expected {int(is_feature.sum())} tokens for the images {', '.join(map(str, images))}, as "
                f"were recorded; the processor makes {count} of them. Name the model's own folder with --model",
                code="lab/other-tokens-of-images",
            )
        inputs["image_grid_thw"] = grids
        if self.blind is Blind.NOTHING:
            patches = made["pixel_values"].split(grids.prod(dim=1).tolist())
            inputs["pixel_values"] = self.factor * torch.cat(
                [
                    self._ordered(each, grid)
                    for each, grid in zip(patches, grids.tolist(), strict=True)
                ]
            )
        return inputs

    def logits(
        self, model: PreTrainedModel, token_ids: torch.Tensor, images: Sequence[Path]
    ) -> torch.Tensor:
        """Return (S, V) logits of one sequence."""
        logits: torch.Tensor = model(**self.inputs(token_ids, images), use_cache=False).logits[0]
        return logits

    def _opened(self, path: Path) -> Image:
        try:
            image = decode(path.read_bytes())
        except (OSError, MediaProblem) as error:
            raise ConfigError(
                f"rlhf audit: expected the image {path}, which the step's samples name; it cannot be read ({error}). "
                "Restore the run's folder media, or record the step again",
                code="image/unreadable",
            ) from error
        return image if self.change is None else self.change(image)

    def _ordered(self, patches: torch.Tensor, grid: Sequence[int]) -> torch.Tensor:
        """Return (N, D) patches of an image in another order."""
        if self.order is Order.REVERSED:
            return patches.flip(0)
        size = self.processor.merge_size
        _, rows, columns = grid
        blocks = patches.reshape(-1, rows // size, columns // size, size, size, patches.shape[-1])
        if self.order is Order.ROWS:
            blocks = blocks.transpose(2, 3)
        elif self.order is Order.TRANSPOSED:
            blocks = blocks.transpose(1, 2).transpose(3, 4)
        return blocks.reshape(patches.shape)
