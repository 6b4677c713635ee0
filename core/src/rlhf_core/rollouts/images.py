"""The images of a run: where they are kept, within which limits, and which model reads them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..config.resolved import ResolvedOptions
from ..durable.run_folder import RunFolder
from ..media.desk import MediaDesk, MediaOptions
from ..media.inspecting import MediaLimits
from ..media.reader import ImageReader
from ..media.vision import VisionModel, VisionSpec

SLOT, HOOK = "model.vision", "rlhf_vision_models"


def image_reader(resolved: ResolvedOptions[Any]) -> ImageReader | None:
    """Return the reader of a run's images; None: its model reads text alone.

    Raises:
        ConfigError: the model does not fit what was chosen to read images for it.
    """
    selection = resolved.optional(SLOT)
    if selection is None:
        return None
    run = resolved.run
    vision: VisionModel = selection.registered.build(selection.options)
    tokens = vision.image_tokens(run.model.path, trust_remote_code=run.model.trust_remote_code)
    data = run.data
    limits = MediaLimits(
        max_images=data.max_images,
        max_pixels=data.max_image_pixels,
        max_bytes=data.max_image_bytes,
    )
    options = MediaOptions(
        folder=_folder(resolved), limits=limits, allow_urls=data.allow_image_urls
    )
    return ImageReader(MediaDesk(options), tokens, data.image_key)


def vision_spec(resolved: ResolvedOptions[Any], *, frozen: bool = False) -> VisionSpec | None:
    """Return what processes that compute with images are told; None: the run's model reads text alone.

    Args:
        frozen: the part of the model that reads pixels is not trained.
    """
    selection = resolved.optional(SLOT)
    if selection is None:
        return None
    return VisionSpec(component=selection.ref(HOOK), media_folder=_folder(resolved), frozen=frozen)


def _folder(resolved: ResolvedOptions[Any]) -> str:
    return str(RunFolder(Path(resolved.run.output)).media.resolve())
