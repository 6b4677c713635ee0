"""Images of a run: where they come from, what is refused, and the store that keeps each once.

Between processes go references (``MediaRef``), never pixels. Modules here know files, limits and places among tokens;
they know no model family and no tokenizer. Pillow is imported where an image is opened.
"""

from .desk import ImagesOnUse, Intake, MediaDesk, MediaOptions
from .given import is_pillow
from .inspecting import MediaLimits, decode
from .parts import image_parts, references_in
from .problem import MediaProblem
from .processor_text import ProcessorText
from .reader import ImageReader, without_images, writing_of
from .reference import ANY_AREA, Frame, MediaRef, PixelLimits
from .sample_image import SampleImage, sample_images
from .spans import (
    Expanded,
    FrameTokens,
    ImageTokens,
    MediaSpan,
    as_shown,
    check_frames,
    collapsed,
    expanded,
    seen_together,
)
from .store import MediaStore
from .videos import place_in_video

__all__ = [
    "ANY_AREA",
    "Expanded",
    "Frame",
    "FrameTokens",
    "ImageReader",
    "ImageTokens",
    "ImagesOnUse",
    "Intake",
    "MediaDesk",
    "MediaLimits",
    "MediaOptions",
    "MediaProblem",
    "MediaRef",
    "MediaSpan",
    "MediaStore",
    "PixelLimits",
    "ProcessorText",
    "SampleImage",
    "as_shown",
    "check_frames",
    "collapsed",
    "decode",
    "expanded",
    "image_parts",
    "is_pillow",
    "place_in_video",
    "references_in",
    "sample_images",
    "seen_together",
    "without_images",
    "writing_of",
]
