"""Stand-ins for control words, so that a template can show contents that have some and they are found again.

A template may trim a content, quote it as JSON, or look for marks in it; to a stand-in it does what it does to a word.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlhf_core.batch.task import Message
from rlhf_core.errors import DataError

from .control_words import ControlText, ControlWords, PlacesOfWords, TextSpan

_ASSISTANT = "assistant"

Tools = Sequence[Mapping[str, Any]]


def has_words(value: object, words: ControlWords) -> bool:
    """Return whether a text anywhere in a nested value has a control word."""
    if isinstance(value, str):
        return words.has(value)
    if isinstance(value, Mapping):
        return any(has_words(key, words) or has_words(one, words) for key, one in value.items())
    if isinstance(value, Sequence) and not isinstance(value, bytes):
        return any(has_words(one, words) for one in value)
    return False


class Quotes:
    """Replaces control words by stand-ins, and finds the stand-ins again.

    Args:
        turn_words: words that have no place in an answer; all others in the content of an assistant's message are
            control tokens, since the policy may write them.
    """

    def __init__(self, words: ControlWords, turn_words: frozenset[str]) -> None:
        self._words = words
        self._turn_words = turn_words
        # A content could have a stand-in that it can know.
        self._nonce = "Kq" + secrets.token_hex(8)
        self._names: dict[str, int] = {}

    def messages(self, messages: Sequence[Message]) -> list[Message]:
        """Return messages with control words replaced by stand-ins, except in the policy's own contents."""
        return [self._message(message) for message in messages]

    def value(self, value: Any) -> Any:
        """Return a nested value with stand-ins in all its texts."""
        if isinstance(value, str):
            return self._text(value, keep=False)
        if isinstance(value, Mapping):
            return {self.value(key): self.value(one) for key, one in value.items()}
        if isinstance(value, Sequence) and not isinstance(value, bytes):
            return [self.value(one) for one in value]
        return value

    def answer(self, text: str) -> str:
        """Return a text of the policy with stand-ins for the words that have no place in an answer."""
        return self._text(text, keep=True)

    def restored(self, text: str) -> RestoredText:
        """Return a text with each stand-in replaced by its word; all other control words in the text are active.

        Raises:
            DataError: a stand-in was changed, so control tokens cannot be recognized.
        """
        by_number = {number: word for word, number in self._names.items()}
        pieces: list[str] = []
        places = PlacesOfWords()
        inert: dict[str, None] = {}
        behind = 0
        for found in re.finditer(f"{self._nonce}w([0-9]+)z", text):
            word = by_number[int(found[1])]
            inert[word] = None
            pieces += [text[behind : found.start()], word]
            places.add(found.start() - behind, found.end() - found.start(), len(word))
            behind = found.end()
        whole = "".join([*pieces, text[behind:]])
        if self._nonce.lower() in whole.lower():
            raise DataError(
                f"expected a chat template that shows contents as they are; it changes the control words in them "
                f"({' '.join(self._names)}). Leave such texts out, or, where rows are read, let them be control tokens "
                "with --data.control_words tokens",
                code="template/changes-text",
            )
        active = tuple(places.span(span) for span in self._words.find(text))
        return RestoredText(text=whole, places=places, active=active, inert=tuple(inert))

    def _message(self, message: Message) -> Message:
        is_answer = message.get("role") == _ASSISTANT
        return {
            self.value(key): self._content(value)
            if is_answer and key == "content"
            else self.value(value)
            for key, value in message.items()
        }

    def _content(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.answer(value)
        if isinstance(value, Sequence) and not isinstance(value, bytes):
            return [self._part(part) for part in value]
        return self.value(value)

    def _part(self, part: Any) -> Any:
        if isinstance(part, str):
            return self.answer(part)
        if isinstance(part, Mapping) and isinstance(part.get("text"), str):
            return {**self.value(part), "text": self.answer(part["text"])}
        return self.value(part)

    def _text(self, text: str, *, keep: bool) -> str:
        pieces, behind = [], 0
        for span in self._words.find(text):
            word = text[slice(*span)]
            if keep and word not in self._turn_words:
                continue
            number = self._names.setdefault(word, len(self._names))
            pieces += [text[behind : span.start], f"{self._nonce}w{number}z"]
            behind = span.end
        return "".join([*pieces, text[behind:]]) if pieces else text


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoredText:
    """Text in which words took the place of their stand-ins."""

    text: str
    places: PlacesOfWords
    """Way from places of the text that had stand-ins to those of this text."""
    active: tuple[TextSpan, ...]
    """Spans of control words that stood in the text beside the stand-ins."""
    inert: tuple[str, ...]
    """Words that had stand-ins, each once."""

    def control_text(self) -> ControlText:
        """Return the text for the tokenizer."""
        if not self.inert:
            return ControlText(text=self.text)
        return ControlText(text=self.text, active=self.active, inert=self.inert)
