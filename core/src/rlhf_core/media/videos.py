"""Videos in chat messages: parts ``{"type": "video", "video": [frame, ...], "fps": 2.0}`` of frames that are there.

A frame is an image in each form that images have. Where frames stand in time say ``fps`` (``sample_fps`` in Qwen's
examples), or ``timestamps``, the seconds of each. Files of videos are refused: nothing here decodes one.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

from .problem import MediaProblem, shown
from .reference import LIMITS, Frame, MediaRef, PixelLimits

MEDIA = "media"
"""Name under which a part holds a reference, or those of its frames."""
VIDEO, TIMES = "video", "timestamps"
RATES = ("fps", "sample_fps")
USUAL_RATE = 24.0
"""Frames a second of a video that does not say it, as Transformers has them."""
VIDEO_KEYS = frozenset({"type", MEDIA, VIDEO, TIMES, *RATES, *LIMITS, "text"})
"""Keys that a part with a video may have; a text beside it is a column of a table that others fill."""
NO_FILE = (
    "expected the frames of the video as a list of images. Make them with ffmpeg -i FILE -vf fps=2 frames/%04d.png, "
    'and give {"type": "video", "video": ["frames/0001.png", ...], "fps": 2.0}'
)

Keep = Callable[[Any, PixelLimits], MediaRef]

log = logging.getLogger(__name__)


class _Times(NamedTuple):
    seconds: Sequence[float]
    rate: float


def is_video(part: Any) -> bool:
    """Return whether a part of a content is a video."""
    return isinstance(part, Mapping) and part.get("type") in ("video", "video_url")


def frames_of(part: Mapping[str, Any]) -> list[MediaRef]:
    """Return the frames of a video whose frames are references.

    Raises:
        MediaProblem: they are none.
    """
    held = part.get(MEDIA)
    frames = [MediaRef.of(one) for one in held] if isinstance(held, list | tuple) else []
    if not frames or any(one.frame is None for one in frames):
        raise MediaProblem("bad reference", f"expected frames of a video, got {shown(held)}")
    return frames


def with_frames(part: Mapping[str, Any], keep: Keep) -> dict[str, Any]:
    """Return a video whose frames are references.

    Args:
        keep: returns the reference of an image as it was given, from its own limits.

    Raises:
        MediaProblem: a frame cannot be used, there are fewer than two or of different sizes, their times are none, or
            the part is a file or has a key that is not obeyed.
    """
    if part.get(MEDIA) is not None:
        return {"type": VIDEO, MEDIA: [image.fields() for image in frames_of(part)]}
    given = part.get(VIDEO)
    if not isinstance(given, list | tuple):
        raise MediaProblem("file of a video", f"a video is {named_video(part)}; {NO_FILE}")
    unknown = [str(key) for key, value in part.items() if value and key not in VIDEO_KEYS]
    if unknown or part.get("text"):
        raise MediaProblem(
            "unknown key of a video",
            f"a video has {shown(', '.join(unknown or ['text']))}, which is not obeyed; expected {VIDEO} with its "
            f"frames, {RATES[0]} or {TIMES}, and {' and '.join(LIMITS)} for the area of a frame. Leave out other keys",
        )
    if len(given) < 2:
        raise MediaProblem(
            "video of one frame",
            f"a video has {len(given)} frames; expected at least 2. Give one alone as an image",
        )
    times, limits = _times(part, len(given)), PixelLimits.of(part)
    frames = [keep(one, limits) for one in given]
    for number, one in enumerate(frames):
        if (one.width, one.height, one.limits) != (
            frames[0].width,
            frames[0].height,
            frames[0].limits,
        ):
            raise MediaProblem(
                "frames of different sizes",
                f"frame {number + 1} of a video has {one.width} x {one.height} pixels, and the first one "
                f"{frames[0].width} x {frames[0].height}; expected one size and one limit on the area for all",
            )
    places = (
        Frame(index=index, count=len(frames), time_s=seconds, rate=times.rate)
        for index, seconds in enumerate(times.seconds)
    )
    placed = [replace(one, frame=place) for one, place in zip(frames, places, strict=True)]
    return {"type": VIDEO, MEDIA: [image.fields() for image in placed]}


def place_in_video(image: MediaRef) -> dict[str, Any]:
    """Return where a frame stands, for records: its number from 0 on, and seconds; nothing for an image by itself."""
    place = image.frame
    return {} if place is None else {"frame": place.index, "time_s": place.time_s}


def _times(part: Mapping[str, Any], count: int) -> _Times:
    rates = [part[name] for name in RATES if part.get(name) is not None]
    given = part.get(TIMES)
    if len(rates) + (given is not None) > 1:
        raise MediaProblem(
            "times of frames",
            f"a video has several of {', '.join(RATES)} and {TIMES}; leave one of them",
        )
    if given is None:
        if not rates:
            _warn_of_rate()
        (rate,) = rates or [USUAL_RATE]
        if not _is_number(rate) or rate <= 0:
            raise MediaProblem(
                "times of frames", f"{RATES[0]} is {shown(rate)}; expected frames a second, above 0"
            )
        return _Times([index / rate for index in range(count)], float(rate))
    if (
        not isinstance(given, list | tuple)
        or len(given) != count
        or not all(map(_is_number, given))
        or any(later <= before for before, later in zip([-1e-9, *given], given, strict=False))
    ):
        raise MediaProblem(
            "times of frames",
            f"{TIMES} is {shown(given)}; expected {count} rising numbers from 0 on, the seconds of each frame",
        )
    return _Times(list(map(float, given)), (count - 1) / (given[-1] - given[0]))


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


def named_video(part: Mapping[str, Any]) -> str:
    """Return what a video is given as, for messages."""
    return shown(next((part[key] for key in part if key not in ("type", "text", *RATES)), part))


@cache
def _warn_of_rate() -> None:
    log.warning(
        "a video has neither %s nor %s: its frames count as %g a second, as in Transformers. Say the true times",
        RATES[0],
        TIMES,
        USUAL_RATE,
    )
