"""Images for a model that a command runs: taken into a folder, given their tokens, and read by engines."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rlhf_config import Selection
from rlhf_config.common import ImageData
from rlhf_core import ConfigError
from rlhf_core.contracts import VisionModel, VisionSpec
from rlhf_core.media import ImageReader, MediaLoader
from rlhf_core.plugins import Plugins
from rlhf_torch.vision.pictures import PictureReader, open_reader

from .options import ModelToServe


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """A model's way to read images."""

    images: ImageReader
    """Takes images in, and gives them their tokens."""
    spec: VisionSpec
    """Settings of engines."""
    plugins: Plugins

    def pictures(self, model: ModelToServe) -> PictureReader:
        """Return a reader of the images that were taken in, as the model takes them.

        Raises:
            ConfigError: the model reads none, or its processor is another model's.
        """
        return open_reader(
            self.spec, model.path, self.plugins, trust_remote_code=model.trust_remote_code
        )


def open_sight(
    selection: Selection | None,
    model: ModelToServe,
    folder: Path,
    plugins: Plugins,
    data: ImageData | None = None,
    *,
    draws: bool = False,
    no_videos: str | None = None,
) -> Sight | None:
    """Return the way in which a model reads images; None: no component was selected for that.

    Args:
        selection: that of ``model.vision``.
        folder: keeps each image once, by its content.
        data: limits of images, and the column that has them; None: the defaults.
        draws: images may come in later turns, so that rows need none.
        no_videos: why frames of videos are not read, whatever the model reads; None: they are.

    Raises:
        ConfigError: the model reads no images, its processor is another model's, or it is an adapter beside its base.
    """
    if selection is None:
        return None
    if model.adapter is not None:
        raise ConfigError(
            f"--model.vision {selection.registered.name}: a model that reads images is served whole, and "
            f"{model.adapter} is an adapter. Merge it first: rlhf merge {model.path} {model.adapter} OUT, and "
            "give OUT.",
            code="adapter/with-images",
        )
    data = data or ImageData()
    vision: VisionModel = selection.build()
    tokens = vision.image_tokens(model.path, trust_remote_code=model.trust_remote_code)
    media = str(folder.resolve())
    return Sight(
        images=ImageReader(
            MediaLoader(data.kept_in(media)),
            tokens,
            data.image_key,
            draws=draws,
            no_videos=no_videos,
        ),
        spec=VisionSpec(component=selection.ref("rlhf_vision_models"), media_folder=media),
        plugins=plugins,
    )
