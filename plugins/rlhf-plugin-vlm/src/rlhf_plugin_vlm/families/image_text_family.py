"""Parts that image-text models of Transformers have in common: where they are, and how features are computed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from rlhf_core.media import ANY_AREA, ImageTokens, MediaSpan, PixelLimits, ProcessorText
from rlhf_torch.vision.family import Features, Picture
from rlhf_torch.vision.processor_files import copy_processor

from .loading import load_image_processor, load_image_text_model, start_of_texts

if TYPE_CHECKING:
    from PIL.Image import Image


class ImageTextFamily(ABC):
    """Base of the families here, which implement ``rlhf_torch.vision.family.VisionFamily``.

    Positions count tokens, whatever they stand for, and features enter in the place of embeddings alone; a family that
    does otherwise says so.

    Raises:
        ConfigError: the processor is missing.
    """

    TOWER: ClassVar[str] = "vision_tower"
    """Name of the part that reads pixels, in the model below its output head."""
    PROJECTOR: ClassVar[tuple[str, ...]] = ("multi_modal_projector",)
    """Names of what makes features of the tower's output, there too: modules or parameters, of which a model of the
    family may lack some."""
    TEXT: ClassVar[str] = "language_model"
    """Name of the part between embeddings and output head."""
    INPUTS: ClassVar[tuple[str, ...]] = ("pixel_values",)
    """Names of the image processor's results that the model takes."""

    tokens: ImageTokens
    feature_id: int
    looks_ahead = False
    looks_ahead_in_windows = False
    changed: Mapping[str, Any] = MappingProxyType({})
    """Values of the image processor that options change, as its file has them."""

    def __init__(self, path: str, *, trust_remote_code: bool) -> None:
        self.path = path
        self.processor = load_image_processor(path, trust_remote_code=trust_remote_code)

    def writing(self, *, trust_remote_code: bool, **around: str) -> ProcessorText:
        """Return what the processor writes into conversations: the start of texts, and what is around images."""
        begin = start_of_texts(self.path, trust_remote_code=trust_remote_code)
        return ProcessorText(begin=begin, **around)

    @abstractmethod
    def picture(self, image: Image, limits: PixelLimits = ANY_AREA) -> Picture:
        """Return an RGB image as the model takes it, within limits on its area."""

    def load(self, **options: Any) -> tuple[PreTrainedModel, dict[str, Any]]:
        """Return the Transformers model, and the information on its loading."""
        return load_image_text_model(self.path, **options)

    def tower(self, model: PreTrainedModel) -> nn.Module:
        """Return the part that reads pixels; the projector lies beside it, or inside of it."""
        tower: nn.Module = getattr(model.base_model, self.TOWER)
        return tower

    def projector(self, model: PreTrainedModel) -> Iterator[nn.Parameter]:
        """Yield the parameters of the part that makes features of what the tower reads."""
        prefixes = tuple(f"{name}." for name in self.PROJECTOR)
        for name, parameter in model.base_model.named_parameters():
            if f"{name}.".startswith(prefixes):
                yield parameter

    def text_model(self, model: PreTrainedModel) -> nn.Module:
        """Return the model between embeddings and output head."""
        text: nn.Module = getattr(model.base_model, self.TEXT)
        return text

    def features(self, model: PreTrainedModel, pictures: Sequence[Picture]) -> Features:
        """Return the features of pictures, one picture's after the other's."""
        tower = next(self.tower(model).parameters())
        inputs = self.batched(pictures)
        inputs["pixel_values"] = inputs["pixel_values"].to(tower.dtype)
        given = {name: part.to(tower.device) for name, part in inputs.items()}
        found = model.base_model.get_image_features(**given, return_dict=True)
        return Features(joined(found.pooler_output))

    def batched(self, pictures: Sequence[Picture]) -> dict[str, Tensor]:
        """Return pictures as the model takes several, on the host."""
        return {name: torch.cat([one.inputs[name] for one in pictures]) for name in self.INPUTS}

    def token_embeddings(self, model: PreTrainedModel, input_ids: Tensor) -> Tensor:
        """Return the embeddings (N, D) of tokens (N,)."""
        embeddings: Tensor = model.get_input_embeddings()(input_ids)
        return embeddings

    def token_inputs(self, model: PreTrainedModel, input_ids: Tensor) -> dict[str, Any]:
        """Return nothing: layers read no tokens themselves."""
        return {}

    def layer_inputs(self, features: Features, places: Tensor, num_tokens: int) -> dict[str, Any]:
        """Return nothing: features enter in the place of embeddings alone."""
        return {}

    def positions(
        self, num_tokens: int, spans: Sequence[MediaSpan], pictures: Sequence[Picture]
    ) -> Tensor:
        """Return positions (T,), which count tokens whatever they stand for."""
        return torch.arange(num_tokens)

    def save(self, folder: Path) -> None:
        """Write the processor's files beside an exported model."""
        copy_processor(self.path, folder, self.changed)


class WholeImageFamily(ImageTextFamily):
    """Base of families whose model sees an image as a whole, with one feature for each place of a grid."""

    of_every: tuple[int, int]
    """Rows and columns of every image's features, for a model that sees all at one size."""

    def grid(self, height: int, width: int) -> tuple[int, int]:
        """Return the rows and columns of an image's features."""
        return self.of_every

    def picture(self, image: Image, limits: PixelLimits = ANY_AREA) -> Picture:
        """Return an RGB image as the model takes it, whatever the limits: ``tokens`` refuses an image that has any."""
        made = self.processor(images=[image], return_tensors="pt")
        return Picture(
            inputs={name: made[name] for name in self.INPUTS},
            grid=self.grid(image.height, image.width),
        )


def joined(found: Tensor | Sequence[Tensor]) -> Tensor:
    """Return features (N, D) of all images out of one tensor for each image, or of one that holds them all.

    Versions of Transformers differ: 5.17 leaves what DeepStack reads in one tensor (N, D), 5.18 cuts it by images.
    """
    if isinstance(found, Tensor) and found.dim() == 2:
        return found
    return torch.cat(list(found))
