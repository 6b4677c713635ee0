"""Images in the files of a command: paths from its folder on, which other commands read as they are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rlhf_core.contracts import Message
from rlhf_core.media import MediaRef, MediaSpan, place_in_video, references_in

FOLDER = "media"
"""Folder of the images, within that of the command's results."""


def file_of(image: MediaRef) -> str:
    """Return the path of an image's file, from the folder of the results on."""
    return f"{FOLDER}/{image.file_name}"


def with_files(
    messages: Sequence[Message], file: Callable[[MediaRef], str] = file_of
) -> tuple[Message, ...]:
    """Return messages with the paths of files, as ``file`` gives them, in the place of references to images."""
    return tuple(_message(message, file) for message in messages)


def files_in(messages: Sequence[Message] | None) -> list[str]:
    """Return the paths of the images of messages of ``with_files``, in order."""
    contents = [message.get("content") for message in messages or ()]
    parts = [part for content in contents if isinstance(content, list) for part in content]
    return [
        file
        for part in parts
        if isinstance(part, Mapping)
        for file in (
            part["video"] if "video" in part else [part["image"]] if "image" in part else []
        )
    ]


def image_record(span: MediaSpan) -> dict[str, Any]:
    """Return an image of a sequence as plain values: its file, its size, and its tokens."""
    return {
        "file": file_of(span.image),
        "width": span.image.width,
        "height": span.image.height,
        "tokens": [span.start, span.end],
        **place_in_video(span.image),
    }


def _message(message: Message, file: Callable[[MediaRef], str]) -> Message:
    content = message.get("content")
    if not isinstance(content, Sequence) or isinstance(content, str | bytes):
        return message
    return {**message, "content": [_part(part, file) for part in content]}


def _part(part: Any, file: Callable[[MediaRef], str]) -> Any:
    if isinstance(part, Mapping) and part.get("type") == "image" and "media" in part:
        return {"type": "image", "image": file(MediaRef.of(part["media"]))}
    if isinstance(part, Mapping) and part.get("type") == "video" and "media" in part:
        frames = references_in([{"content": [part]}])
        return {"type": "video", "video": [file(frame) for frame in frames], **_times(frames)}
    return part


def _times(frames: Sequence[MediaRef]) -> dict[str, Any]:
    """Return the times of a video's frames as its part says them: their rate, or where they are uneven, each."""
    places = [one.frame for one in frames if one.frame is not None]
    if all(place.time_s == place.index / place.rate for place in places):
        return {"fps": places[0].rate}
    return {"timestamps": [place.time_s for place in places]}
