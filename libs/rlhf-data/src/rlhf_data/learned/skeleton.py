"""Renderings of a conversation in which stand-ins hold the place of contents, so that the template's own text shows.

A template hides where the answers of a rendered conversation are. In a rendering whose answers are stand-ins, words
that occur nowhere else, they can be found. The learned span of a turn goes from the end of the generation prompt to the
end of the token that ends the turn. The end of the generation prompt is where the rendering of the messages before the
turn, with ``add_generation_prompt``, ceases to agree with the rendering of the whole; so a text that the template
writes before an answer, such as an empty thought, belongs to the turn.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

from rlhf_core.batch.task import Message

from ..chat.template.pieces import THOUGHT_FIELDS
from ..rows import RowProblem
from .learned_text import Span
from .messages import ASSISTANT

Render = Callable[[Sequence[Message], bool], str]
"""Function from messages, and whether the policy is to reply, to their rendering; raises RowProblem."""

MARK = "Zx7Qv"
"""Start of the stand-ins: no template contains or changes it."""

_TRIED = (
    ("user", "assistant", "user", "assistant"),
    ("system", "user", "assistant", "user", "assistant"),
    ("user", "assistant", "tool", "assistant", "user", "assistant", "tool", "assistant"),
)
"""Roles of the conversations by which a template is tried."""


class Filled(NamedTuple):
    """Text that was made of a skeleton, and the turns in it."""

    text: str
    turns: Mapping[int, Span]


@dataclass(frozen=True, slots=True, kw_only=True)
class Skeleton:
    """Rendering with stand-ins, and the turns in it."""

    text: str
    holes: Mapping[int, Span]
    """Place of the stand-in of a message, by the message's index, ascending."""
    turns: Mapping[int, Span]
    """Learned span of an assistant's message, by the message's index, ascending."""
    begun: Mapping[int, str]
    """Text of the generation prompt behind the beginning of a turn, by the message's index: empty, or the beginning of
    a thought that this rendering has not. A rendering that has it begins the turn behind it."""

    def filled(self, contents: Mapping[int, str]) -> Filled:
        """Return the text with contents in the place of the stand-ins."""
        pieces, position, shift = [], 0, 0
        turns: dict[int, Span] = {}
        for index, hole in self.holes.items():
            pieces += [self.text[position : hole.start], contents[index]]
            position = hole.end
            growth = len(contents[index]) - (hole.end - hole.start)
            if index in self.turns:
                turn = self.turns[index]
                turns[index] = Span(turn.start + shift, turn.end + shift + growth)
            shift += growth
        return Filled("".join([*pieces, self.text[position:]]), turns)


class _Opening(NamedTuple):
    """Beginning of a turn."""

    lead: int
    """Characters of the turn before its content."""
    begun: str
    """Text of the generation prompt that the rendering has not."""


class SkeletonMaker:
    """Maker of the skeletons of one chat template.

    Args:
        ends: pattern of the tokens that can end a turn.
        eos: the end-of-sequence token, if there is one.
        render: function by which the template is tried.
    """

    def __init__(self, ends: re.Pattern[str], eos: str | None, render: Render) -> None:
        self._ends = ends
        self._eos = eos
        # Beginnings of turns, by the text between the contents of two messages. Looking them up saves rendering the
        # messages before each turn, whose time is quadratic in the length of a conversation. These texts, and those
        # that end turns, are of ``_TRIED`` alone, so that no row's result depends on other rows.
        self._openings: dict[str, _Opening] = {}
        shapes = []
        for roles in _TRIED:
            with suppress(RowProblem):
                shapes.append(self.make_shape(roles, render))
        self._openings = {key: value for one in shapes for key, value in _openings_of(one).items()}
        self._endings = {
            shape.text[shape.holes[index].end : turn.end]
            for shape in shapes
            for index, turn in shape.turns.items()
        }

    def make_shape(self, roles: Sequence[str], render: Render) -> Skeleton:
        """Return the skeleton of all conversations that are no more than contents of these roles.

        Raises:
            RowProblem: as from ``make``.
        """
        messages: list[Message] = [{"role": role, "content": ""} for role in roles]
        return self.make(messages, range(len(roles)), MARK, render)

    def make(
        self, messages: Sequence[Message], replaced: Collection[int], mark: str, render: Render
    ) -> Skeleton:
        """Return the skeleton of a conversation.

        Args:
            replaced: indices, ascending, of the messages whose contents are replaced; the assistant's are turns.
            mark: start of the stand-ins, which is in no content and in no text of the template.

        Raises:
            RowProblem: the template refuses the messages, hides or repeats a content, or writes no end of a turn.
        """
        stood = [
            _stand_in(message, f"{mark}{index}v") if index in replaced else message
            for index, message in enumerate(messages)
        ]
        text = render(stood, False)
        holes = {index: _place(text, f"{mark}{index}v", index) for index in replaced}
        if list(holes.values()) != sorted(holes.values()):
            raise RowProblem("chat template", "the chat template changes the order of the messages")
        is_shape = len(holes) == len(messages)
        turns: dict[int, Span] = {}
        begun: dict[int, str] = {}
        behind = 0
        limits = [*(hole.start for hole in holes.values()), len(text)][1:]
        for (index, hole), limit in zip(holes.items(), limits, strict=True):
            if messages[index]["role"] == ASSISTANT:
                opening = self._opening(text, Span(behind, hole.start), stood[:index], render)
                end = self._end(text, hole.end, limit)
                # Behind an answer may be a content, in which a special token would be found that ends no turn.
                if end is None or not (is_shape or text[hole.end : end] in self._endings):
                    raise no_end(text[hole.end : limit], index)
                turns[index] = Span(hole.start - opening.lead, end)
                begun[index] = opening.begun
            behind = hole.end
        return Skeleton(text=text, holes=holes, turns=turns, begun=begun)

    def _opening(
        self, text: str, between: Span, before: Sequence[Message], render: Render
    ) -> _Opening:
        """Return the beginning of a turn.

        Args:
            between: text between the stand-in before and this one.
            before: messages before the turn.
        """
        # A thought that a template writes as a message of its own (gpt-oss) is of the turn, and of no known opening.
        has_thought = MARK in text[slice(*between)]
        known = [one for one in self._openings if not has_thought and text.endswith(one, *between)]
        if known:
            return self._openings[max(known, key=len)]
        return _opening_by_prompt(text, between, before, render)

    def _end(self, text: str, start: int, limit: int) -> int | None:
        """Return the end of the first special token behind an answer, or that of the end-of-sequence token where it
        follows without other text (as in ``<|END_RESPONSE|><|END_OF_TURN_TOKEN|>`` of Command R7B)."""
        first = following = self._ends.search(text, start, limit)
        while following is not None:
            if following.group() == self._eos:
                return following.end()
            following = self._ends.match(text, following.end(), limit)
        return None if first is None else first.end()


def _openings_of(shape: Skeleton) -> dict[str, _Opening]:
    openings, behind = {}, 0
    for index, hole in shape.holes.items():
        between = shape.text[behind : hole.start]
        if index in shape.turns and between.strip():
            lead = hole.start - shape.turns[index].start
            openings[between] = _Opening(lead, shape.begun[index])
        behind = hole.end
    return openings


def shared_prefix(first: str, second: str) -> int:
    """Return the number of characters at the start that two texts share."""
    low, high = 0, min(len(first), len(second))
    if first[:high] == second[:high]:
        return high
    while low + 1 < high:
        middle = (low + high) // 2
        low, high = (middle, high) if first[:middle] == second[:middle] else (low, middle)
    return low


def _stand_in(message: Message, word: str) -> Message:
    """Return a message with stand-ins for content and thoughts, and without tool calls."""
    kept = {key: value for key, value in message.items() if key != "tool_calls"}
    thoughts = {key: thought_word(word) for key in THOUGHT_FIELDS if isinstance(kept.get(key), str)}
    return {**kept, **thoughts, "content": word}


def thought_word(word: str) -> str:
    """Return the stand-in for the thoughts of a message whose content's stand-in is ``word``."""
    return f"{word}T"


def _place(text: str, word: str, index: int) -> Span:
    places = [found.start() for found in re.finditer(f"{re.escape(word)}(?!T)", text)]
    if len(places) != 1:
        raise RowProblem(
            "hidden by the template",
            f"message {index + 1}: expected a chat template that shows a message once and as it is; this one showed it "
            f"{len(places)} times",
        )
    return Span(places[0], places[0] + len(word))


def no_end(shown: str, index: int) -> RowProblem:
    """Return the problem of a row of which the template writes ``shown`` behind an answer, and no end."""
    return RowProblem(
        "no end of turn",
        f"message {index + 1}: expected a chat template that writes a special token behind each answer, the last one "
        f"too, by which the policy learns to stop; it writes {shown!r:.40}. Turns that it merges into one cannot be "
        "learned either. Set --model.tokenizer to a copy of the tokenizer with such a template",
    )


def _opening_by_prompt(
    text: str, between: Span, before: Sequence[Message], render: Render
) -> _Opening:
    """Return the beginning of a turn: where its prompt, the messages before it, ceases to agree with the whole text."""
    if before:
        try:
            prompt = render(before, True)
            start = shared_prefix(prompt, text)
            # A generation prompt may go on where the whole does not, with a thought begun; the messages may not.
            if start == len(prompt) or text.startswith(render(before, False)):
                return _Opening(between.end - start, prompt[start:])
        except RowProblem:
            pass  # a template may refuse the messages before, but not the whole
    # There is no prompt, or the template shows its messages differently when others follow: so the text before the
    # answer has to be that with which the template asks for any answer.
    probe: Message = {"role": "user", "content": "Hello"}
    with_opening, without = render([probe], True), render([probe], False)
    opening = with_opening.removeprefix(without)
    if opening == with_opening or not opening or not text.endswith(opening, *between):
        raise RowProblem(
            "changed by the template",
            f"message {len(before) + 1}: cannot tell where the assistant's turn begins, because the chat template "
            "shows the messages before it differently when others follow. Learn the last turn only "
            "(--data.learn last), or give each turn a row of its own",
        )
    return _Opening(0, "")
