"""The parser of answers: a thought, then content and tool calls, all from token ids."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rlhf_core.contracts.executor import Answer

from .blocks import read_blocks
from .deepseek import read_deepseek
from .families import CallForm, ThoughtTags
from .gemma import read_gemma
from .harmony import read_harmony
from .lfm2 import read_lfm2
from .llama import read_llama
from .mistral import read_mistral
from .pieces import CallsRead, Piece, pieces_of, text_of

Decode = Callable[[Sequence[int]], str]


class AnswerParser:
    """Parser of one tokenizer's answers.

    Args:
        words: token ids of the tokenizer's control words.
        ends: tokens that end a turn, which are no part of an answer.
        opens_thought: the template's generation prompt begins a thought.
    """

    def __init__(
        self,
        words: Mapping[str, int],
        decode: Decode,
        *,
        thoughts: ThoughtTags | None,
        calls: CallForm | None,
        ends: frozenset[int],
        opens_thought: bool,
    ) -> None:
        self._words = words
        self._decode = decode
        self._thoughts = thoughts
        self._calls = calls
        self._ends = ends
        self._opens_thought = opens_thought
        known = (*(thoughts or ()), *(calls.marks if calls else ()))
        self._marks = {words[mark]: mark for mark in known if mark in words}
        self._spelled = tuple(mark for mark in known if mark not in words)

    def parse(
        self,
        token_ids: Sequence[int],
        prompt_ids: Sequence[int] | None = None,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> Answer:
        """Return what the policy wrote; see ``contracts.Renderer.parse``."""
        ids = [int(token) for token in token_ids]
        text = self._decode(ids)
        thought, read, is_open = self._apart(ids, prompt_ids, tools)
        if is_open:
            return Answer(text=text, reasoning=thought or "", content="", reasoning_open=True)
        if thought is None and not read.calls and not read.malformed:
            return Answer(text=text)
        return Answer(
            text=text,
            reasoning=thought or "",
            content="".join(read.content).strip("\n"),
            tool_calls=tuple(read.calls),
            malformed=tuple(read.malformed),
        )

    def _apart(
        self,
        ids: list[int],
        prompt_ids: Sequence[int] | None,
        tools: Sequence[Mapping[str, Any]],
    ) -> tuple[str | None, CallsRead, bool]:
        """Return the thought (None: there is none), what else there is, and whether the thought has no end."""
        if self._calls is not None and self._calls.name == "harmony":
            return read_harmony(self._pieces(ids))
        while ids and ids[-1] in self._ends:
            ids.pop()
        pieces = self._pieces(ids)
        is_opened = self._is_opened(prompt_ids)
        if prompt_ids is None and self._thoughts is not None:
            # An unknown prompt began the thought that ends here.
            is_opened |= Piece(self._thoughts.end, is_mark=True) in pieces
        thought, rest, is_open = self._thought(pieces, is_opened)
        return thought, self._read(rest, tools), is_open

    def _pieces(self, ids: Sequence[int]) -> list[Piece]:
        return pieces_of(ids, self._marks, self._spelled, self._decode)

    def _is_opened(self, prompt_ids: Sequence[int] | None) -> bool:
        """Return whether the prompt ends within a thought."""
        if prompt_ids is None or self._thoughts is None:
            return self._opens_thought and self._thoughts is not None
        begin, end = (self._words.get(mark) for mark in self._thoughts)
        if begin is None or end is None:
            return self._decode(prompt_ids[-16:]).rstrip().endswith(self._thoughts.begin)
        for token in reversed(prompt_ids):
            if token in (begin, end) or token in self._ends:
                return bool(token == begin)
        return False

    def _thought(
        self, pieces: Sequence[Piece], is_opened: bool
    ) -> tuple[str | None, list[Piece], bool]:
        """Return the thought (None: there is none), the pieces behind it, and whether it has no end."""
        if self._thoughts is None:
            return None, list(pieces), False
        begin, end = self._thoughts
        first = next(
            (n for n, piece in enumerate(pieces) if piece.is_mark or piece.text.strip()), None
        )
        starts = first is not None and pieces[first] == Piece(begin, is_mark=True)
        if not starts and not is_opened:
            return None, list(pieces), False
        behind = list(pieces[first + 1 :] if starts and first is not None else pieces)
        if starts and behind and not behind[0].is_mark:
            behind[0] = Piece(behind[0].text.removeprefix(self._thoughts.channel))
        if Piece(end, is_mark=True) in behind:
            place = behind.index(Piece(end, is_mark=True))
            return _joined(behind[:place]), behind[place + 1 :], False
        # A call ends a thought, as engines' parsers have it.
        marks = self._calls.marks if self._calls is not None else ()
        for place, piece in enumerate(behind):
            if piece.is_mark and piece.text in marks:
                return _joined(behind[:place]), behind[place:], False
        return _joined(behind), [], True

    def _read(self, pieces: Sequence[Piece], tools: Sequence[Mapping[str, Any]]) -> CallsRead:
        if self._calls is None:
            return CallsRead([piece.text for piece in pieces], [], [])
        # A mark of a thought behind the thought is a piece of content.
        own = self._calls.marks
        rest = [piece if piece.text in own else Piece(piece.text) for piece in pieces]
        match self._calls.name:
            case "hermes":
                return read_blocks(rest, tools)
            case "mistral":
                return read_mistral(rest)
            case "deepseek":
                return read_deepseek(rest)
            case "gemma":
                return read_gemma(rest)
            case "lfm2":
                return read_lfm2(rest)
        return read_llama(rest)


def _joined(pieces: Sequence[Piece]) -> str:
    return text_of(pieces).strip("\n")
