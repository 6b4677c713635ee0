"""The images of a run: where they are kept, within which limits, and which model reads them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rlhf_config.resolved import ResolvedOptions
from rlhf_config.run import RunConfig
from rlhf_core.capabilities import SEVERAL_TURNS
from rlhf_core.media.loader import MediaLoader
from rlhf_core.media.reader import ImageReader
from rlhf_core.media.vision import ImageReaderSpec, PartsTraining, VisionModel, VisionSpec
from rlhf_core.plugins import Plugins
from rlhf_core.storage.run_folder import RunFolder
from rlhf_data.drawn_images import GIB, DrawnImages

SLOT, HOOK, ALL = "model.vision", "rlhf_vision_models", PartsTraining()


def image_reader(resolved: ResolvedOptions[Any]) -> ImageReader | None:
    """Return the reader of a run's images; None: its model reads text alone.

    Raises:
        ConfigError: the model does not fit what was chosen to read images for it.
    """
    selection, spec = resolved.optional(SLOT), image_reader_spec(resolved)
    return None if selection is None or spec is None else _reader(spec, selection.build())


def image_reader_spec(resolved: ResolvedOptions[Any]) -> ImageReaderSpec | None:
    """Return what processes that play episodes are told of images; None: the run's model reads text alone."""
    selection = resolved.optional(SLOT)
    if selection is None:
        return None
    run = resolved.run
    return ImageReaderSpec(
        component=selection.ref(HOOK),
        model_path=run.model.path,
        options=run.data.kept_in(_folder(resolved)),
        key=run.data.image_key,
        draws=resolved.provides("rollout.executor", SEVERAL_TURNS),
        no_videos=resolved.no_videos,
        trust_remote_code=run.model.trust_remote_code,
    )


def open_image_reader(spec: ImageReaderSpec | None, plugins: Plugins) -> ImageReader | None:
    """Return the reader that a process was told of; None: the run's model reads text alone.

    Raises:
        ConfigError: the model does not fit what was chosen to read images for it.
    """
    return None if spec is None else _reader(spec, plugins.build(spec.component))


def drawn_images(run: RunConfig, images: ImageReader | None) -> DrawnImages | None:
    """Return what keeps the images that a run's episodes draw within their room; None: nothing draws any."""
    if images is None or not images.draws or images.loader.store is None:
        return None
    # A sample is trained as many steps after it was begun as weights may be old, and the next step may be under way.
    num_steps = run.rollout.max_staleness + 2
    most_bytes = run.rollout.drawn_images_gib * GIB
    return DrawnImages(images.loader.store.folder, most_bytes, num_steps)


def vision_spec(resolved: ResolvedOptions[Any], parts: PartsTraining = ALL) -> VisionSpec | None:
    """Return what processes that compute with images are told; None: the run's model reads text alone.

    Args:
        parts: the parts of the model that are trained; a role that only scores trains none.
    """
    selection = resolved.optional(SLOT)
    if selection is None:
        return None
    return VisionSpec(component=selection.ref(HOOK), media_folder=_folder(resolved), parts=parts)


def _reader(spec: ImageReaderSpec, vision: VisionModel) -> ImageReader:
    tokens = vision.image_tokens(spec.model_path, trust_remote_code=spec.trust_remote_code)
    return ImageReader(
        MediaLoader(spec.options), tokens, spec.key, draws=spec.draws, no_videos=spec.no_videos
    )


def _folder(resolved: ResolvedOptions[Any]) -> str:
    return str(RunFolder(Path(resolved.run.output)).media.resolve())
