"""Images in chat messages: parts of a content, ``{"type": "image", ...}``, as Transformers has them.

A part holds an image (a path, bytes, ...), a reference (``{"type": "image", "media": {...}}``), or nothing: then it is
a place for one of the images that come beside the messages. In a text the word ``<image>`` is such a place too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from .given import KEYS, plain_image
from .problem import MediaProblem
from .reference import MediaRef

MARK = "<image>"
"""Place of an image in a text, where images come beside the messages."""
MEDIA = "media"
"""Name under which a part holds a reference."""
IMAGE_KEYS = frozenset({"type", "text", MEDIA, *KEYS})
"""Keys of a part that is an image; a text beside an image is a column of a table that others fill."""
NO_VIDEO = "the messages have a video; expected images. Give some of its frames as images"

Message = Mapping[str, Any]


def is_image(part: Any) -> bool:
    """Return whether a part of a content is an image, or a place for one."""
    return isinstance(part, Mapping) and part.get("type") in ("image", "image_url")


def is_video(part: Any) -> bool:
    """Return whether a part of a content is a video."""
    return isinstance(part, Mapping) and part.get("type") in ("video", "video_url")


def image_parts(messages: Sequence[Message]) -> Iterator[Mapping[str, Any]]:
    """Yield the images and places for images of all messages, in order."""
    yield from (part for part in _parts(messages) if is_image(part))


def refuse_videos(messages: Sequence[Message]) -> None:
    """Refuse a part with a video, which a chat template would write as a placeholder that nothing fills.

    Raises:
        MediaProblem: a message has a video.
    """
    for part in _parts(messages):
        if is_video(part):
            raise MediaProblem("video", NO_VIDEO)


def _parts(messages: Sequence[Message]) -> Iterator[Any]:
    """Yield the parts of all contents that are lists of parts, in order."""
    for message in messages:
        content = message.get("content") if isinstance(message, Mapping) else None
        if isinstance(content, Sequence) and not isinstance(content, str | bytes):
            yield from content


def references_in(messages: Sequence[Message]) -> tuple[MediaRef, ...]:
    """Return the references of all images of messages, in order.

    Raises:
        MediaProblem: an image is no reference.
    """
    return tuple(MediaRef.of(part.get(MEDIA)) for part in image_parts(messages))


def with_references(
    messages: Sequence[Message], images: Sequence[Any], keep: Callable[[Any], MediaRef]
) -> tuple[Message, ...]:
    """Return messages whose images are references.

    Args:
        images: images beside the messages, which fill the places for images in their order; without any place they
            come first in the first message of the user.
        keep: returns the reference of an image as it was given.

    Raises:
        MediaProblem: an image cannot be used, or there are more or fewer images than places.
    """
    opened = [_opened(message, has_images=bool(images)) for message in messages]
    places = sum(_is_place(part) for part in image_parts(opened))
    if images and not places:
        opened = _in_front(opened, len(images))
        places = len(images)
    if len(images) != places:
        raise MediaProblem(
            "images and places differ",
            f"there are {len(images)} images and {places} places for them ({MARK} in texts, and image parts without an "
            "image); expected as many of one as of the other",
        )
    rest = iter(images)

    def part_of(part: Any) -> Any:
        if not is_image(part):
            return part
        if MEDIA in part:
            return {"type": "image", MEDIA: MediaRef.of(part[MEDIA]).fields()}
        return {"type": "image", MEDIA: keep(next(rest) if _is_place(part) else part).fields()}

    return tuple(_mapped(message, part_of) for message in opened)


def plain_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Return messages as plain values: bytes of images as base64, images of Pillow as PNG in base64."""
    return [dict(_mapped(message, _plain_part)) for message in messages]


def _plain_part(part: Any) -> Any:
    if not is_image(part) or MEDIA in part:
        return part
    return {key: plain_image(value) for key, value in part.items()}


def _is_place(part: Mapping[str, Any]) -> bool:
    return all(value is None for key, value in part.items() if key not in ("type", "text"))


def _opened(message: Message, *, has_images: bool) -> Message:
    """Return a message in whose texts places for images are parts, where there are images beside the messages."""
    content = message.get("content")
    if not has_images or message.get("role") == "assistant":
        return message
    if isinstance(content, str):
        return {**message, "content": _split(content)} if MARK in content else message
    if isinstance(content, Sequence) and not isinstance(content, bytes):
        parts: list[Any] = []
        for part in content:
            text = part.get("text") if isinstance(part, Mapping) else part
            if isinstance(text, str) and MARK in text and not is_image(part):
                parts += _split(text)
            else:
                parts.append(part)
        return {**message, "content": parts}
    return message


def _split(text: str) -> list[dict[str, Any]]:
    pieces = text.split(MARK)
    parts: list[dict[str, Any]] = []
    for number, piece in enumerate(pieces):
        if number:
            parts.append({"type": "image"})
        if piece:
            parts.append({"type": "text", "text": piece})
    return parts


def _in_front(messages: Sequence[Message], count: int) -> list[Message]:
    places = [{"type": "image"}] * count
    changed = list(messages)
    for index, message in enumerate(messages):
        if message.get("role") != "user":
            continue
        content = message.get("content")
        texts = [{"type": "text", "text": content}] if isinstance(content, str) else content
        changed[index] = {**message, "content": [*places, *(texts or ())]}
        return changed
    raise MediaProblem(
        "images and places differ",
        f"there are {count} images and no message of the user that could hold them",
    )


def _mapped(message: Message, part_of: Callable[[Any], Any]) -> Message:
    content = message.get("content")
    if isinstance(content, Sequence) and not isinstance(content, str | bytes):
        return {**message, "content": [part_of(part) for part in content]}
    return message
