"""Frames of videos in Qwen's families: their tokens, their times, and their pixels as patches of two frames.

Qwen2-VL and Qwen2.5-VL have one block of pads for a video, in which positions tell the time; Qwen3-VL and Qwen3.5 write
``<0.3 seconds>`` before each two frames.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch

from rlhf_core.media import Frame, ImageTokens, MediaProblem, MediaRef, ProcessorText
from rlhf_torch.vision.family import Picture

from .loading import load_tokenizer, require_equal, token_ids
from .video_settings import QWEN2, QWEN3, VideoSettings

if TYPE_CHECKING:
    from PIL.Image import Image

IN_POSITIONS = ("qwen2_vl", "qwen2_5_vl")
"""Families in which positions alone tell the time of frames."""
IN_TEXT = ("qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe")
"""Families in which texts before frames do."""
_UNEVEN = 0.05
"""Share of the time between two frames by which a frame may stand elsewhere, where positions have one rate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeTexts:
    """Tokens around the frames that are seen together."""

    encode: Callable[[str], tuple[int, ...]]
    begin: int
    end: int

    def around(self, seconds: float, pads: tuple[int, ...]) -> tuple[int, ...]:
        """Return pads with the text of their time before them, within their edges."""
        return (*self.encode(f"<{seconds:.1f} seconds>"), self.begin, *pads, self.end)


class FramePads:
    """Implements ``rlhf_core.media.FrameTokens``: one pad for each feature.

    Args:
        images: tokens of images.
        video_id: the pad of videos.
        settings: returns the settings of the model's video processor, which are read when a video is.
        times: writes times as text; None: positions tell them.
        rate_counts: positions tell times at one rate, so that times have to be even.
    """

    def __init__(
        self,
        images: ImageTokens,
        video_id: int,
        settings: Callable[[], VideoSettings],
        *,
        times: TimeTexts | None,
        rate_counts: bool,
    ) -> None:
        self._images = images
        self._settings = settings
        self._rate_counts = rate_counts
        self.times = times
        self.video_marker_id = video_id

    @property
    def marker_id(self) -> int:
        return self._images.marker_id

    @property
    def never_sampled(self) -> tuple[int, ...]:
        return self._images.never_sampled

    @property
    def writing(self) -> ProcessorText:
        return self._images.writing

    @cached_property
    def settings(self) -> VideoSettings:
        """Settings of the model's video processor."""
        return self._settings()

    @property
    def frames_together(self) -> int:
        """Number of frames of a patch."""
        return self.settings.temporal_patch_size

    def tokens_of(self, image: MediaRef) -> tuple[int, ...]:
        """Return the pads of an image, by its size and the limits on its area alone."""
        return self._images.tokens_of(image)

    def tokens_of_frames(self, frames: Sequence[MediaRef]) -> list[tuple[int, ...]]:
        """Return the tokens of each ``frames_together`` frames of a video, by sizes, limits and times alone.

        Raises:
            MediaProblem: the frames are too narrow, their limits exclude each other, or their times are uneven where
                positions have one rate.
        """
        height, width = self.size(frames[0])
        side = self.settings.patch_size * self.settings.merge_size
        pads = (self.video_marker_id,) * ((height // side) * (width // side))
        places = [place for place in (one.frame for one in frames) if place is not None]
        if self._rate_counts:
            _require_even(places)
        step = self.frames_together
        starts = range(0, len(frames), step)
        if self.times is None:
            return [pads for _ in starts]
        # The last frame stands for those that the last patch lacks.
        seconds = [place.time_s for place in places] + [places[-1].time_s] * (-len(places) % step)
        return [
            self.times.around((seconds[start] + seconds[start + step - 1]) / 2, pads)
            for start in starts
        ]

    def size(self, frame: MediaRef) -> tuple[int, int]:
        """Return height and width in pixels at which the model sees a frame and all others of its video.

        Raises:
            MediaProblem: frames are too narrow, or their limits exclude each other.
        """
        assert frame.frame is not None
        return self.settings.size(frame.height, frame.width, frame.frame.count, frame.limits)


def frame_pads(
    path: str,
    config: Any,
    images: ImageTokens,
    *,
    trust_remote_code: bool,
) -> FramePads:
    """Return the tokens of images and frames for a model of ``IN_POSITIONS`` or ``IN_TEXT``.

    Raises:
        ConfigError: the tokenizer lacks the words around frames.
    """
    in_text, vision = config.model_type in IN_TEXT, config.vision_config

    def settings() -> VideoSettings:
        found = VideoSettings.of(path, QWEN3 if in_text else QWEN2, bounds_all_frames=in_text)
        for name, own in (
            ("patch_size", vision.patch_size),
            ("merge_size", vision.spatial_merge_size),
            ("temporal_patch_size", vision.temporal_patch_size),
        ):
            require_equal(path, f"{name} of videos", getattr(found, name), own)
        return found

    return FramePads(
        images,
        int(config.video_token_id),
        settings,
        times=_time_texts(path, trust_remote_code=trust_remote_code) if in_text else None,
        rate_counts=hasattr(vision, "tokens_per_second"),
    )


def patches(
    processor: Any, settings: VideoSettings, images: Sequence[Image], size: tuple[int, int]
) -> Picture:
    """Return frames that are seen together as patches, each of which has a part of every frame.

    Args:
        processor: the image processor, which makes of an image the patches of a video that stands still.
        size: height and width in pixels at which the model sees them.
    """
    height, width = size
    still = [
        processor(
            images=[image.resize((width, height), settings.resample)],
            do_resize=False,
            return_tensors="pt",
            **settings.colors,
        )
        for image in images
    ]
    still += still[-1:] * (settings.temporal_patch_size - len(still))
    area = settings.patch_size**2
    by_time = [made["pixel_values"].unflatten(1, (3, len(still), area)) for made in still]
    moving = torch.stack([one[:, :, time] for time, one in enumerate(by_time)], dim=2)
    side = settings.patch_size * settings.merge_size
    return Picture(
        inputs={
            "pixel_values": moving.flatten(1),
            "image_grid_thw": still[0]["image_grid_thw"],
        },
        grid=(height // side, width // side),
    )


def _time_texts(path: str, *, trust_remote_code: bool) -> TimeTexts:
    words = {"<|vision_start|>": None, "<|vision_end|>": None}
    begin, end = token_ids(path, words, trust_remote_code=trust_remote_code)
    tokenizer = load_tokenizer(path, trust_remote_code=trust_remote_code)

    def encode(text: str) -> tuple[int, ...]:
        return tuple(tokenizer.encode(text, add_special_tokens=False))

    return TimeTexts(encode=encode, begin=begin, end=end)


def _require_even(places: Sequence[Frame]) -> None:
    first = places[0]
    for place in places:
        expected = first.time_s + place.index / place.rate
        if abs(place.time_s - expected) * place.rate > _UNEVEN:
            raise MediaProblem(
                "uneven times of frames",
                f"frame {place.index + 1} of a video stands at {place.time_s:g} seconds, and at {place.rate:g} frames "
                f"a second it would at {expected:g}; this model has one rate for a video. Give frames at even times",
            )
