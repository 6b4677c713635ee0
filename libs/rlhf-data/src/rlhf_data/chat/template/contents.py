"""Contents of messages in the form that a chat template writes: one text, or a list of parts.

A template that writes texts shows nothing, or Python's spelling, of a list; one that writes parts shows nothing of a
text. Which of them a template writes is tried once for each role.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from enum import StrEnum
from typing import Any

from rlhf_core.batch.task import Message
from rlhf_core.media.parts import IMAGE_KEYS, is_image
from rlhf_core.media.videos import MEDIA, NO_FILE, VIDEO, VIDEO_KEYS, is_video, named_video

from ...source import is_list
from .problem import BAD, PART, TemplateProblem, shortened

Show = Callable[[Sequence[Message]], str]
"""Function from messages, whose contents stay as they are, to their rendering; raises TemplateProblem."""

_TEXT_KEYS = frozenset({"type", "text"})
_SEEN = ("image", "image_url", "video")
"""Types of parts that are seen, which are also the keys of what is seen."""
_WORD = "Zx7Qv5"
"""Text that no template contains or changes."""
_USER: Message = {"role": "user", "content": "Hello"}
_CALL: Message = {
    "role": "assistant",
    "content": "",
    "tool_calls": [
        {"id": "call00000", "type": "function", "function": {"name": "look", "arguments": {}}}
    ],
}


class ContentForm(StrEnum):
    """Form of contents that a template writes for a role."""

    TEXT = "text"
    PARTS = "parts"
    BOTH = "both"


class Contents:
    """Fits the contents of messages to a template.

    Args:
        show: renders messages; asked some times for each role.
    """

    def __init__(self, show: Show) -> None:
        self._show = show
        self._forms: dict[str, ContentForm] = {}

    def fitted(self, messages: Sequence[Message]) -> list[dict[str, Any]]:
        """Return messages whose contents have the form that the template writes for their roles.

        Parts that are all texts become one text where the template writes texts, and a text becomes a part where it
        writes parts; where it writes both, a content stays as it is.

        Raises:
            TemplateProblem: a part is neither text, image nor video, or has a key that nothing reads.
        """
        return [self._in_parts(message) for message in self.joined(messages)]

    def joined(self, messages: Sequence[Message]) -> list[Message]:
        """Return messages in which parts that are all texts are one text, where the template writes texts.

        Raises:
            TemplateProblem: as from ``fitted``.
        """
        return [self._joined(message, number) for number, message in enumerate(messages, start=1)]

    def _joined(self, message: Message, number: int) -> Message:
        content = message.get("content")
        if not is_list(content):
            return message
        texts = [
            text_of_part(part, f"message {number}, part {place}")
            for place, part in enumerate(content, start=1)
        ]
        if None not in texts and self._form(message) is ContentForm.TEXT:
            return {**message, "content": "".join(filter(None, texts))}
        parts = [
            part if text is None else {"type": "text", "text": text}
            for part, text in zip(content, texts, strict=True)
        ]
        return {**message, "content": parts}

    def _in_parts(self, message: Message) -> dict[str, Any]:
        content = message.get("content")
        if isinstance(content, str) and self._form(message) is ContentForm.PARTS:
            return {**message, "content": [{"type": "text", "text": content}]}
        return dict(message)

    def _form(self, message: Message) -> ContentForm:
        role = str(message.get("role"))
        if role not in self._forms:
            self._forms[role] = self._tried(role)
        return self._forms[role]

    def _tried(self, role: str) -> ContentForm:
        """Return the form that the template writes for a role; that of the user where it writes neither."""
        text = self._rendering(role, _WORD)
        parts = self._rendering(role, [{"type": "text", "text": _WORD}])
        writes_text = _WORD in text
        # A list that is written as a list is in Python's spelling, or in JSON.
        writes_parts = _WORD in parts and not any(f"{mark}{_WORD}{mark}" in parts for mark in "'\"")
        if writes_text and writes_parts:
            return ContentForm.BOTH
        if writes_text or writes_parts:
            return ContentForm.TEXT if writes_text else ContentForm.PARTS
        return ContentForm.BOTH if role == "user" else self._form(_USER)

    def _rendering(self, role: str, content: object) -> str:
        """Return a conversation with a content of a role; empty where the template refuses it."""
        tried: Message = {"role": role, "content": content}
        if role == "user":
            chat = [tried]
        elif role == "assistant":
            chat = [self._in_parts(_USER), tried]
        elif role == "tool":
            called = {"name": "look", "tool_call_id": "call00000"}
            chat = [self._in_parts(_USER), self._in_parts(_CALL), {**tried, **called}]
        else:
            chat = [tried, self._in_parts(_USER)]
        with suppress(TemplateProblem):
            return self._show(chat)
        return ""


def text_of_part(part: object, where: str) -> str | None:
    """Return the text of a part of a content; None for an image or a video. Keys that are null are as if they were
    not there.

    Args:
        where: message and number of the part, for errors.

    Raises:
        TemplateProblem: the part is neither, or has a key that nothing reads.
    """
    if isinstance(part, str):
        return part
    if not isinstance(part, Mapping):
        raise TemplateProblem(
            f"{where}: expected text or an object as a part of content, got {type(part).__name__} "
            f"{shortened(repr(part), 80)}",
            BAD,
        )
    keys = {str(key) for key, value in part.items() if value is not None}
    if is_image(part):
        if "source" in keys:  # of Anthropic's messages
            raise TemplateProblem(
                f"{where}: expected an image under one of its keys ({', '.join(sorted(IMAGE_KEYS - {'type'}))}), got "
                'it in source. Write it as {"type": "image", "base64": DATA}, or with url or path',
                PART,
            )
        _refuse_keys(keys - IMAGE_KEYS, "an image", where)
        return None
    if is_video(part):
        if not isinstance(part.get(MEDIA) or part.get(VIDEO), list | tuple):
            raise TemplateProblem(f"{where}: a video is {named_video(part)}; {NO_FILE}", PART)
        _refuse_keys(keys - VIDEO_KEYS, "a video", where)
        return None
    kind, text = part.get("type"), part.get("text")
    if isinstance(text, str) and kind in ("text", None):
        _refuse_keys(keys - _TEXT_KEYS, "a text", where)
        return text
    shown = "without a type" if kind is None else f"of type {shortened(repr(kind), 40)}"
    raise TemplateProblem(
        f"{where}: expected a part of type text (with its text), image or video, got one {shown} with "
        f"{shortened(', '.join(sorted(keys)), 80) or 'no keys'}; it would be dropped. {_way_to_part(kind, keys)}",
        PART,
    )


def _way_to_part(kind: object, keys: Collection[str]) -> str:
    """Return how a part of an unknown type is given as one that is known."""
    if kind is None and (
        given := [key for key in _SEEN if key in keys]
    ):  # of Qwen's first examples
        return f'Give it its type: {{"type": "{given[0]}", "{given[0]}": ...}}'
    if kind == "input_image":  # of OpenAI's Responses
        return 'Write it as {"type": "image_url", "image_url": {"url": ...}}'
    if kind in ("input_text", "output_text"):
        return 'Write it as {"type": "text", "text": ...}'
    return "Write it as text, or leave the row out"


def _refuse_keys(unknown: set[str], what: str, where: str) -> None:
    if unknown:
        raise TemplateProblem(
            f"{where}: {what} has the unknown key {shortened(', '.join(sorted(unknown)), 80)}, which nothing reads; "
            "leave it out",
            PART,
        )
