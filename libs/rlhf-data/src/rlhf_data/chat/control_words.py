"""Words that a tokenizer reads as one control token, such as ``<|im_end|>``, and texts in which they are ordinary text.

A control word is a special token, or another added token that is made to mark something (``<tool_call>``, ``<think>``).
Added tokens that stand for ordinary text are none: blanks, new lines, and tags of HTML that the chat template does not
write.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from .parsing.families import ANSWER_WORDS

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_MARKS = re.compile("[<\\[({|\uff5c].*[>\\])}|\uff5c]", flags=re.DOTALL)
_TURN_MARKS = (
    *("<|im_start|>", "<|im_end|>"),  # ChatML, Qwen
    *("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),  # Llama 3
    *("<start_of_turn>", "<end_of_turn>"),  # Gemma
    *("[INST]", "[/INST]"),  # Llama 2, Mistral
    *(
        "<|user|>",
        "<|assistant|>",
        "<\uff5cUser\uff5c>",
        "<\uff5cAssistant\uff5c>",
    ),  # Phi, GLM, DeepSeek
)
"""Marks of turns that the templates of widespread models write."""
_HTML = re.compile(r"</?[a-z][a-z0-9]{0,15}/?>")


class TextSpan(NamedTuple):
    """Part of a text."""

    start: int
    """Index of the first character."""
    end: int
    """Index after the last character."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlText:
    """A text with the places at which its control words are control tokens."""

    text: str
    active: tuple[TextSpan, ...] | None = None
    """Spans of the control words that are control tokens, in order; those elsewhere are ordinary text. None: the
    tokenizer reads the text as it does, so that every control word is a token."""
    inert: tuple[str, ...] = ()
    """Control words that stand in the text as ordinary text, each once."""

    def __post_init__(self) -> None:
        assert self.active is not None or not self.inert


class PlacesOfWords:
    """Way from places in a text to those in another one, which has other words instead of some and is the same else.

    No place is inside of such a word.
    """

    def __init__(self) -> None:
        self._ends: list[int] = [0]
        self._moved: list[int] = [0]

    def add(self, between: int, old: int, new: int) -> None:
        """Add a word: the characters since the last one, its length, and that of the word in its place."""
        self._ends.append(self._ends[-1] + between + old)
        self._moved.append(self._moved[-1] + between + new)

    def index(self, index: int) -> int:
        """Return the place in the other text."""
        number = bisect_right(self._ends, index) - 1
        return self._moved[number] + index - self._ends[number]

    def span(self, span: tuple[int, int]) -> TextSpan:
        """Return a part's place in the other text."""
        return TextSpan(self.index(span[0]), self.index(span[1]))


class ControlWords:
    """The control words of a tokenizer, with their token ids."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        template = template_text(tokenizer)
        named = set(map(str, tokenizer.all_special_tokens))
        self.ids: Mapping[str, int] = {
            added.content: token
            for token, added in tokenizer.added_tokens_decoder.items()
            if added.special or added.content in named or _marks_something(added.content, template)
        }
        self.structural = frozenset(
            word
            for word in self.ids
            if word
            in (tokenizer.bos_token, tokenizer.eos_token, tokenizer.pad_token, tokenizer.unk_token)
        )
        """Words that begin, end or pad a text."""
        ordered = sorted(filter(None, self.ids), key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, ordered)) or r"(?!)")
        self._normalize = _normalizer(tokenizer, self.ids)
        self._foreign = [
            mark for mark in _TURN_MARKS if mark not in self.ids and mark not in template
        ]

    def has(self, text: str) -> bool:
        """Return whether a text has a control word."""
        return self._pattern.search(text) is not None or (
            self._normalize is not None and self._pattern.search(self._normalize(text)) is not None
        )

    def find(self, text: str) -> list[TextSpan]:
        """Return the places of control words as they are spelled, the longest word where several begin."""
        return [TextSpan(*found.span()) for found in self._pattern.finditer(text)]

    def names(self, text: str) -> tuple[str, ...]:
        """Return the control words of a text, each once, in the order of their first places."""
        found = self._pattern.findall(text)
        if not found and self._normalize is not None:
            found = self._pattern.findall(self._normalize(text))
        return tuple(dict.fromkeys(found))

    def read_as_text(self, text: str, inert: Iterable[str]) -> tuple[str, ...]:
        """Return what is ordinary text in a text, each word once: its ``inert`` words, and marks of turns that other
        models' templates write and for which this tokenizer has no token."""
        return tuple(dict.fromkeys((*inert, *(mark for mark in self._foreign if mark in text))))

    def as_text(self, text: str, active: Sequence[TextSpan] = ()) -> ControlText:
        """Return a text whose control words are ordinary text, but those at the ``active`` places."""
        if not self.has(text):
            return ControlText(text=text)
        places = set(active)
        found = self.find(text)
        inert = dict.fromkeys(text[slice(*span)] for span in found if span not in places)
        if not found:
            inert = dict.fromkeys(self.names(text))
        if not inert:
            return ControlText(text=text)
        return ControlText(text=text, active=tuple(active), inert=tuple(inert))


@dataclass(frozen=True, slots=True)
class InertWords:
    """Count of the rows whose control words were read as ordinary text."""

    rows: int = 0
    words: tuple[str, ...] = ()
    """The words, each once, in the order in which they were found."""
    first: str = ""
    """Place of the first row."""

    def plus(self, words: Iterable[str], where: str) -> InertWords:
        """Return the count with one more row, if it has such words."""
        found = tuple(words)
        if not found:
            return self
        together = tuple(dict.fromkeys((*self.words, *found)))
        return InertWords(self.rows + 1, together, self.first or where)

    def joined(self, other: InertWords) -> InertWords:
        """Return the count of both."""
        words = tuple(dict.fromkeys((*self.words, *other.words)))
        return InertWords(self.rows + other.rows, words, self.first or other.first)

    def describe(self, total: int, option: str) -> str:
        """Return the caution for people: what was found, what it became, and what to set if it is meant otherwise."""
        shown = " ".join(self.words[:5]) + (" ..." if len(self.words) > 5 else "")
        return (
            f"{option}: {self.rows} of {total} rows contain control words ({shown}; the first is {self.first}). They "
            "are read as ordinary text. If rows were rendered with this model's chat template before, set "
            "--data.control_words tokens and leave --data.chat out; if with another model's template, give the messages"
        )


def template_text(tokenizer: PreTrainedTokenizerBase) -> str:
    """Return the chat template of a tokenizer, or all of them; empty without one."""
    template = getattr(tokenizer, "chat_template", None)
    return "\n".join(template.values()) if isinstance(template, dict) else template or ""


def _marks_something(word: str, template: str) -> bool:
    """Return whether an added token that is not special is made to mark something, and not a piece of text."""
    if not word.strip():
        return False
    if word in template or word in ANSWER_WORDS:
        return True
    return _MARKS.fullmatch(word.strip()) is not None and _HTML.fullmatch(word) is None


def _normalizer(
    tokenizer: PreTrainedTokenizerBase, words: Mapping[str, int]
) -> Callable[[str], str] | None:
    """Return what a tokenizer does to a text before it looks for some control words in it; None: nothing."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    normalizer = getattr(backend, "normalizer", None)
    if normalizer is None:
        return None
    ids = set(words.values())
    changed = any(
        added.normalized for token, added in tokenizer.added_tokens_decoder.items() if token in ids
    )
    normalize: Callable[[str], str] = normalizer.normalize_str
    return normalize if changed else None
