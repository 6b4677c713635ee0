"""Sizes at which Qwen's models see frames of videos, by their video processors' files and arithmetic.

Transformers' video processors need torchvision; these numbers do not. Pixels are resized by Pillow, as those of images.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize
from transformers.utils import cached_file

from rlhf_core import ConfigError
from rlhf_core.media import MediaProblem, PixelLimits
from rlhf_core.outside.json_reader import read_object

_WHOLE, _VIDEOS = "processor_config.json", "video_preprocessor_config.json"
_IMAGES = "preprocessor_config.json"
_MOST_NARROW = 200
"""Longer side of a frame in shorter ones, at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Defaults:
    """Values of a video processor where its file has none, as Transformers' class has them."""

    patch_size: int
    size: Mapping[str, int]
    image_mean: tuple[float, float, float]
    image_std: tuple[float, float, float]
    max_video_tokens: int


QWEN2 = Defaults(
    patch_size=14,
    size={"shortest_edge": 128 * 28 * 28, "longest_edge": 28 * 28 * 768},
    image_mean=(0.48145466, 0.4578275, 0.40821073),
    image_std=(0.26862954, 0.26130258, 0.27577711),
    max_video_tokens=128_000,
)
QWEN3 = Defaults(
    patch_size=16,
    size={"shortest_edge": 128 * 32 * 32, "longest_edge": 32 * 32 * 768},
    image_mean=(0.5, 0.5, 0.5),
    image_std=(0.5, 0.5, 0.5),
    max_video_tokens=768,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class VideoSettings:
    """A model's way to change the sizes and the colors of frames."""

    patch_size: int
    merge_size: int
    temporal_patch_size: int
    shortest_edge: int
    longest_edge: int
    """Smallest and largest area in pixels: of a frame, or of all frames of a video."""
    bounds_all_frames: bool
    resample: int
    colors: Mapping[str, Any]
    """Options of the image processor on scale, mean and deviation of colors."""
    caps_frames: bool
    max_video_tokens: int

    @classmethod
    def of(cls, path: str, defaults: Defaults, *, bounds_all_frames: bool) -> VideoSettings:
        """Return the settings in the files of a model's processor.

        Raises:
            ConfigError: the files leave the sizes of frames as they are, or have no areas.
        """
        values = _values(path)
        size = dict(values.get("size") or defaults.size)
        for old, new in (("min_pixels", "shortest_edge"), ("max_pixels", "longest_edge")):
            if values.get(old) is not None and not bounds_all_frames:
                size[new] = values[old]
        if not values.get("do_resize", True) or not {"shortest_edge", "longest_edge"} <= {*size}:
            raise ConfigError(
                f"model {path}: its video processor leaves the sizes of frames as they are (do_resize, size {size}); "
                "expected a size with shortest_edge and longest_edge. Copy video_preprocessor_config.json from the "
                "model's own repository",
                code="image/video-sizes",
            )
        return cls(
            patch_size=values.get("patch_size", defaults.patch_size),
            merge_size=values.get("merge_size", 2),
            temporal_patch_size=values.get("temporal_patch_size", 2),
            shortest_edge=size["shortest_edge"],
            longest_edge=size["longest_edge"],
            bounds_all_frames=bounds_all_frames,
            resample=values.get("resample", 3),
            colors={
                "do_rescale": values.get("do_rescale", True),
                "rescale_factor": values.get("rescale_factor", 1 / 255),
                "do_normalize": values.get("do_normalize", True),
                "image_mean": list(values.get("image_mean") or defaults.image_mean),
                "image_std": list(values.get("image_std") or defaults.image_std),
            },
            caps_frames=bool(values.get("cap_pixels_per_frame")),
            max_video_tokens=values.get("max_video_tokens", defaults.max_video_tokens),
        )

    def size(self, height: int, width: int, count: int, limits: PixelLimits) -> tuple[int, int]:
        """Return height and width in pixels at which the model sees each frame of a video.

        Args:
            count: number of the video's frames.
            limits: limits on the area of one frame.

        Raises:
            MediaProblem: frames are too narrow, or the limits exclude each other.
        """
        factor = self.patch_size * self.merge_size
        frames = count if self.bounds_all_frames else 1
        areas = PixelLimits(
            **{name: frames * area for name, area in limits.fields().items()}
        ).otherwise(PixelLimits(min_pixels=self.shortest_edge, max_pixels=self.longest_edge))
        assert areas.min_pixels is not None
        assert areas.max_pixels is not None
        largest = self._capped(areas.min_pixels, areas.max_pixels, count, factor)
        if max(height, width) > _MOST_NARROW * min(height, width):
            raise MediaProblem(
                "size of a frame",
                f"frames have {width} x {height} pixels; expected sides of which the longer one is at most "
                f"{_MOST_NARROW} shorter ones",
            )
        if self.bounds_all_frames:
            return size_of_frames(
                count,
                height,
                width,
                factor=factor,
                temporal_factor=self.temporal_patch_size,
                smallest=areas.min_pixels,
                largest=largest,
            )
        found: tuple[int, int] = smart_resize(height, width, factor, areas.min_pixels, largest)
        return found

    def _capped(self, smallest: int, largest: int, count: int, factor: int) -> int:
        """Return the largest area with each frame's share in what a video may have."""
        if not self.caps_frames:
            return largest
        least = int(smallest * 1.05)
        tokens = self.max_video_tokens * factor * factor
        if self.bounds_all_frames:
            return max(min(tokens, largest // count), least) * count
        share = int(tokens * 0.9) * self.temporal_patch_size // count
        return max(min(largest, share), least)


def size_of_frames(
    count: int,
    height: int,
    width: int,
    *,
    factor: int,
    temporal_factor: int,
    smallest: int,
    largest: int,
) -> tuple[int, int]:
    """Return the multiples of ``factor`` next to height and width whose area, times ``count`` frames, lies between
    ``smallest`` and ``largest``, of about the same shape.

    Source: ``smart_resize`` of Qwen3-VL's video processor in Transformers, whose module needs torchvision.
    """
    if min(height, width) < factor:
        scale = max(factor / height, factor / width)
        height, width = int(height * scale), int(width * scale)
    rows, columns = round(height / factor) * factor, round(width / factor) * factor
    counted = round(count / temporal_factor) * temporal_factor
    if counted * rows * columns > largest:
        ratio = math.sqrt(count * height * width / largest)
        rows = max(factor, math.floor(height / ratio / factor) * factor)
        columns = max(factor, math.floor(width / ratio / factor) * factor)
    elif counted * rows * columns < smallest:
        ratio = math.sqrt(smallest / (count * height * width))
        rows = math.ceil(height * ratio / factor) * factor
        columns = math.ceil(width * ratio / factor) * factor
    return rows, columns


def _values(path: str) -> dict[str, Any]:
    """Return what Transformers reads for the video processor of a folder or hub name: a part of the file of all parts,
    else a file of its own, else that of images."""
    for name in (_WHOLE, _VIDEOS, _IMAGES):
        found = cached_file(
            path,
            name,
            _raise_exceptions_for_missing_entries=False,
            _raise_exceptions_for_connection_errors=False,
        )
        if found is None:
            continue
        values = read_object(Path(found), "a video processor's settings")
        if name == _WHOLE:
            values = values.get("video_processor") or {}
        if values:
            return dict(values)
    return {}
