"""An image of a finished sample as rewards get it, whichever process they are in: a file of the run, never pixels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .reader import ImageReader
from .spans import MediaSpan


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleImage:
    """An image that a sample has in its prompt or in what came later."""

    folder: str
    """Folder of the store that keeps the image (``MediaStore``), which is the same for all samples of a run."""
    span: MediaSpan
    """Reference to the image, and its places among the sample's tokens."""

    @property
    def path(self) -> str:
        """The image's file, in one of ``FORMATS``, as it was given: ``PIL.Image.open`` takes it, and
        ``PIL.ImageOps.exif_transpose`` turns it as the policy sees it."""
        return str(Path(self.folder) / self.span.image.file_name)


def sample_images(
    spans: Sequence[MediaSpan], reader: ImageReader | None
) -> tuple[SampleImage, ...]:
    """Return the images of a sample.

    Args:
        reader: took the images in, and keeps them; None: the policy reads text alone, so there are none.
    """
    if not spans:
        return ()
    assert reader is not None, "a sample with images, and nobody who took them in"
    store = reader.loader.store
    assert store is not None, "images of a run are kept"
    return tuple(SampleImage(folder=str(store.folder), span=span) for span in spans)
