"""Parts that a family of image-text models brings to trainers and engines on torch.

Axes beyond the project's table: ``U`` features of images; each stands on a token of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from torch import Tensor, nn
from transformers import PreTrainedModel

from rlhf_core.contracts import VisionModel
from rlhf_core.media import ANY_AREA, FrameTokens, ImageTokens, MediaRef, MediaSpan, PixelLimits

if TYPE_CHECKING:
    from PIL.Image import Image


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Picture:
    """One image as the model takes it, or frames of a video that it sees as one."""

    inputs: Mapping[str, Tensor]
    """Outputs of the family's processor, on the host."""
    grid: tuple[int, int]
    """Height and width in features: rows, and features of a row."""

    @property
    def num_features(self) -> int:
        """Number of tokens on which its features stand."""
        return self.grid[0] * self.grid[1]

    @property
    def num_bytes(self) -> int:
        return sum(part.nbytes for part in self.inputs.values())


class Features(NamedTuple):
    """Numbers that the model makes of pixels."""

    embeddings: Tensor
    """(U, D) in the place of the embeddings of tokens."""
    layers: tuple[Tensor, ...] = ()
    """(U, D) each: what the first layers of the text model add to their outputs at the same tokens."""


class VisionFamily(Protocol):
    """One model's way from images to hidden states."""

    @property
    def tokens(self) -> ImageTokens: ...

    @property
    def feature_id(self) -> int:
        """The token on which a feature stands, once for each, within the tokens of an image."""

    @property
    def looks_ahead(self) -> bool:
        """True: tokens with features of one image see each other, those behind them too; else all tokens look back."""

    @property
    def looks_ahead_in_windows(self) -> bool:
        """True: where tokens look ahead, they do in layers with a window alone. A family without it: in all layers."""

    def load(self, **options: Any) -> tuple[PreTrainedModel, dict[str, Any]]:
        """Return the Transformers model and the information on its loading, as ``from_pretrained(PATH, **options)``
        does."""

    def picture(self, image: Image, limits: PixelLimits = ANY_AREA) -> Picture:
        """Return an RGB image as the model takes it, within limits on its area that ``tokens`` knows too."""

    def tower(self, model: PreTrainedModel) -> nn.Module:
        """Return the part of the model that reads pixels; its projector may lie inside of it."""

    def projector(self, model: PreTrainedModel) -> Iterable[nn.Parameter]:
        """Return the parameters of the part that makes features of what the tower reads, inside of the tower or not.

        Without this method ``actor.freeze_visual_encoder`` works alone of the options on parts of the model.
        """

    def text_model(self, model: PreTrainedModel) -> nn.Module:
        """Return the part of the model between embeddings and output head."""

    def features(self, model: PreTrainedModel, pictures: Sequence[Picture]) -> Features:
        """Return the features of pictures, one picture's after the other's."""

    def token_embeddings(self, model: PreTrainedModel, input_ids: Tensor) -> Tensor:
        """Return the embeddings (N, D) of tokens (N,), in whose places features enter.

        A family without this method has those of the model's one table.
        """

    def token_inputs(self, model: PreTrainedModel, input_ids: Tensor) -> dict[str, Any]:
        """Return further arguments of the text model, if its layers read tokens (N,) themselves.

        A family without this method has no such layers.
        """

    def layer_inputs(self, features: Features, places: Tensor, num_tokens: int) -> dict[str, Any]:
        """Return further arguments of the text model, if its layers read features too.

        Args:
            features: as many as there are ``places``.
            places: (U,) index of the token of each feature, among ``num_tokens``.
        """

    def positions(
        self, num_tokens: int, spans: Sequence[MediaSpan], pictures: Sequence[Picture]
    ) -> Tensor:
        """Return the positions of one sequence's tokens, (T,) or (3, T), from 0 on.

        Args:
            spans: place of each picture; where several frames of a video are one, the first frame's.
        """

    def save(self, folder: Path) -> None:
        """Write the processor's files beside a model that was exported: those of the base, and what options changed."""


class VideoFamily(VisionFamily, Protocol):
    """One model's way from images, and frames of videos, to hidden states."""

    @property
    def tokens(self) -> FrameTokens: ...

    def frames(self, images: Sequence[Image], first: MediaRef) -> Picture:
        """Return RGB frames that the model sees as one, as it takes them.

        Args:
            images: at most ``tokens.frames_together``; where there are fewer, the last one stands for those behind it.
            first: reference of the first of them, with its place in the video and the limits on its area.
        """


class TorchVision(VisionModel, Protocol):
    """A vision model for backends and engines on torch."""

    def family(self, model_path: str, *, trust_remote_code: bool) -> VisionFamily:
        """Return what the model of a folder or hub name needs.

        Raises:
            ConfigError: the model reads no images, its family is unknown, or its processor is another model's.
        """
