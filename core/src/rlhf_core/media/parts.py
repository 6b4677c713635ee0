"""Images in chat messages: parts of a content, ``{"type": "image", ...}``, as Transformers has them.

A part holds an image (a path, bytes, ...), a reference (``{"type": "image", "media": {...}}``), or nothing: then it is
a place for one of the images that come beside the messages. In a text the word ``<image>`` is such a place too. A part
may say at which area a model sees its image (``max_pixels``, ``min_pixels``), and a place which of the images it shows
(``index``). What else it says is refused, and never dropped. Videos are parts too: ``videos``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from typing import Any

from .given import KEYS, plain_image
from .problem import MediaProblem, shown
from .reference import LIMITS, MediaRef, PixelLimits
from .videos import MEDIA, frames_of, is_video, with_frames

MARK = "<image>"
"""Place of an image in a text, where images come beside the messages."""
INDEX = "index"
"""Name under which a place has the number of its image among those beside the messages."""

Message = Mapping[str, Any]

_OF_PART = frozenset({"type", MEDIA, INDEX, *KEYS, *LIMITS})
_OF_OBJECT = frozenset({*KEYS, "type", "format", "mime_type", "media_type"})
"""Keys of an object that is an image: a table's entry, or OpenAI's ``image_url``."""
IMAGE_KEYS = _OF_PART | {"text", "detail"}
"""Keys that a part with an image may have. A text beside an image is a column of a table that others fill, and the
``detail`` that OpenAI's clients send may be the automatic one; what stands there is checked where images are read."""


def is_image(part: Any) -> bool:
    """Return whether a part of a content is an image, or a place for one."""
    return isinstance(part, Mapping) and part.get("type") in ("image", "image_url")


def is_seen(part: Any) -> bool:
    """Return whether a part of a content is an image, a place for one, or a video."""
    return is_image(part) or is_video(part)


def image_parts(messages: Sequence[Message]) -> Iterator[Mapping[str, Any]]:
    """Yield the images, places for images, and videos of all messages, in order."""
    yield from (part for part in _parts(messages) if is_seen(part))


def _parts(messages: Sequence[Message]) -> Iterator[Any]:
    """Yield the parts of all contents that are lists of parts, in order."""
    for message in messages:
        content = message.get("content") if isinstance(message, Mapping) else None
        if isinstance(content, Sequence) and not isinstance(content, str | bytes):
            yield from content


def references_in(messages: Sequence[Message]) -> tuple[MediaRef, ...]:
    """Return the references of all images of messages, and of all frames of videos, in order.

    Raises:
        MediaProblem: an image is not a reference.
    """
    return tuple(
        image
        for part in image_parts(messages)
        for image in (frames_of(part) if is_video(part) else [MediaRef.of(part.get(MEDIA))])
    )


def marks_in(messages: Sequence[Message]) -> bool:
    """Return whether a text of messages, but the assistant's, has a place for an image."""
    return any(
        MARK in text
        for message in messages
        if message.get("role") != "assistant"
        for text in _texts(message.get("content"))
    )


def with_references(
    messages: Sequence[Message],
    images: Sequence[Any],
    keep: Callable[[Any, PixelLimits], MediaRef],
    *,
    marks: bool,
) -> tuple[Message, ...]:
    """Return messages whose images are references.

    Args:
        images: images beside the messages, which fill the places for images in their order; without any place they
            come first in the first message of the user.
        keep: returns the reference of an image as it was given, from its own limits.
        marks: ``MARK`` in texts is a place.

    Raises:
        MediaProblem: an image cannot be used, there are more or fewer images than places, or a part has a key that is
            not obeyed.
    """
    opened = [_opened(message) if marks else message for message in messages]
    parts = [part for part in image_parts(opened) if not is_video(part)]
    for part in parts:
        _check_keys(part)
    places = [part for part in parts if _is_place(part)]
    if images and not places:
        opened = _in_front(opened, len(images))
        places = [{}] * len(images)
    fitting = iter(_fitted(images, places))

    def kept(given: Any, limits: PixelLimits) -> MediaRef:
        if isinstance(given, Mapping):
            _refuse_keys(_unknown(given, {*_OF_OBJECT, *LIMITS}))
            limits = limits.otherwise(PixelLimits.of(given))
        return keep(given, limits)

    def part_of(part: Any) -> Any:
        if is_video(part):
            return with_frames(part, kept)
        if not is_image(part):
            return part
        if MEDIA in part:
            return {"type": "image", MEDIA: MediaRef.of(part[MEDIA]).fields()}
        limits = PixelLimits.of(part)
        if not _is_place(part):
            return {"type": "image", MEDIA: keep(part, limits).fields()}
        return {"type": "image", MEDIA: kept(next(fitting), limits).fields()}

    return tuple(_mapped(message, part_of) for message in opened)


def plain_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Return messages as plain values: bytes of images as base64, images of Pillow as PNG in base64."""
    return [dict(_mapped(message, _plain_part)) for message in messages]


def _plain_part(part: Any) -> Any:
    if not is_seen(part) or MEDIA in part:
        return part
    return {
        key: list(map(plain_image, value))
        if isinstance(value, list | tuple)
        else plain_image(value)
        for key, value in part.items()
    }


def _is_place(part: Mapping[str, Any]) -> bool:
    return all(part.get(key) is None for key in (MEDIA, *KEYS))


def _fitted(images: Sequence[Any], places: Sequence[Mapping[str, Any]]) -> list[Any]:
    """Return the image of each place: in their order, or by the numbers that all of the places have."""
    numbers = [part.get(INDEX) for part in places]
    if any(number is not None for number in numbers):
        if any(type(number) is not int for number in numbers) or (
            {*numbers} != {*range(len(images))}
        ):
            raise MediaProblem(
                "images and places differ",
                f"the places for images have the numbers ({INDEX}) {shown(numbers)}, and there are {len(images)} "
                "images; expected each of them, counted from 0 on",
            )
        return [images[number] for number in numbers if number is not None]
    if len(images) != len(places):
        raise MediaProblem(
            "images and places differ",
            f"there are {len(images)} images and {len(places)} places for them ({MARK} in texts, and image parts "
            "without an image); expected as many of one as of the other",
        )
    return list(images)


def _check_keys(part: Mapping[str, Any]) -> None:
    """Refuse what an image's part says and nobody obeys.

    Raises:
        MediaProblem: there is such a key.
    """
    unknown = _unknown(part, _OF_PART)
    for key in KEYS:
        held = part.get(key)
        if isinstance(held, Mapping):
            unknown += _unknown(held, _OF_OBJECT)
    _refuse_keys(unknown)


def _unknown(part: Mapping[str, Any], known: Set[str]) -> list[str]:
    """Return the keys of a part that say something and are not known."""
    plain = (("text", ""), ("detail", "auto"))
    return [
        str(key)
        for key, value in part.items()
        if value is not None and key not in known and (key, value) not in plain
    ]


def _refuse_keys(unknown: Sequence[str]) -> None:
    if unknown:
        raise MediaProblem(
            "unknown key of an image",
            f"an image has {shown(', '.join(unknown))}, which is not obeyed; expected the image itself under one of "
            f"{', '.join(KEYS)}, and {' and '.join(LIMITS)} for the area at which the model sees it. Leave out other "
            "keys",
        )


def _texts(content: Any) -> Iterator[str]:
    """Yield the texts of a content, those of image parts left out."""
    if isinstance(content, str):
        yield content
    elif isinstance(content, Sequence) and not isinstance(content, bytes):
        for part in content:
            text = part.get("text") if isinstance(part, Mapping) else part
            if isinstance(text, str) and not is_image(part):
                yield text


def _opened(message: Message) -> Message:
    """Return a message in whose texts places for images are parts; the assistant's stay as they are."""
    content = message.get("content")
    if message.get("role") == "assistant":
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
