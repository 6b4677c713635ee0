"""Vision models: how the images of a sequence become tokens, and what trainers and engines compute of their pixels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from ..component import ComponentRef
from .loader import MediaOptions
from .spans import ImageTokens


@dataclass(frozen=True, slots=True, kw_only=True)
class PartsTraining:
    """Parts of an image-text model that are trained, and at which rates. Every parameter is in exactly one part."""

    freeze_tower: bool = False
    """The part that reads pixels is not trained."""
    freeze_projector: bool | None = None
    """The part that makes features of what the tower reads is not trained; None: as the tower if it lies inside of it,
    else it is trained."""
    freeze_text: bool = False
    """All else is not trained: the text model, its embeddings and its output head."""
    tower_rate: float = 1.0
    """Factor of the learning rate of the tower without its projector, above 0."""
    projector_rate: float = 1.0
    """Factor of the learning rate of the projector, above 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VisionSpec:
    """Settings of a process that computes with images."""

    component: ComponentRef
    """The vision model and its options."""
    media_folder: str
    """Folder of the run's images (``rlhf_core.media.store``), which each process reads by itself."""
    parts: PartsTraining = PartsTraining()
    """Parts of the model that a trained role trains."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageReaderSpec:
    """Names and plain values from which a process makes the run's ``ImageReader``."""

    component: ComponentRef
    """The vision model and its options."""
    model_path: str
    """Folder or hub name of the model."""
    options: MediaOptions
    """Limits of images, and where they may come from."""
    key: str | None = None
    """Column of a row with its images, as ``ImageReader`` has it."""
    draws: bool = False
    """Images may come in later turns, so that rows need none."""
    no_videos: str | None = None
    """Why the run reads no frames of videos, and the way out; None: it reads what the model does."""
    trust_remote_code: bool = False
    """True: Python code that comes with the model may run."""


class VisionModel(Protocol):
    """Brings what a family of image-text models needs. A factory is called as ``factory(config)``.

    The core asks for tokens alone. A backend or an engine on torch asks for more: ``rlhf_torch.vision`` has that half
    of the contract.
    """

    def image_tokens(self, model_path: str, *, trust_remote_code: bool) -> ImageTokens:
        """Return how the model of a folder or hub name writes images as tokens.

        Raises:
            ConfigError: the model reads no images, its family is unknown, or its processor is another model's.
        """
