"""Spans of a rendered conversation that the policy has to learn to write.

Each way ends in a comparison with the rendering of the whole conversation, which alone is tokenized. So a template that
changes, hides or merges answers leads to a bad row and not to a wrong mask.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property, partial
from itertools import pairwise
from typing import Any

from rlhf_core.batch.task import Message
from rlhf_core.errors import DataError
from rlhf_core.media.parts import references_in

from ..chat.renderer import TokenizerRenderer
from ..chat.template.pieces import THOUGHT_FIELDS
from ..chat.template.problem import REFUSED
from ..rows import RowProblem, check_text, problem_of
from ..turn_order import out_of_turn
from .learned_text import LearnedText, Span
from .messages import ASSISTANT, TOOL
from .said_messages import said_messages
from .shown_answers import CHANGED, calls_of, changed, holds, shows
from .skeleton import MARK, Render, Skeleton, SkeletonMaker, no_end, shared_prefix
from .weights import without_weights

_MAX_SHAPES = 10_000
"""Sequences of roles whose skeletons are kept."""

_BLOCK = re.compile(r"\{%-?\s*generation\s*-?%\}")
"""Start of what the assistant writes, in templates that mark it themselves."""

Tools = Sequence[Mapping[str, Any]]


class ChatSpans:
    """Finder of the learned spans of conversations, by the chat template of a tokenizer.

    Raises:
        DataError: the tokenizer has no chat template.
    """

    def __init__(self, renderer: TokenizerRenderer) -> None:
        tokenizer = renderer.tokenizer
        if tokenizer.chat_template is None:
            raise DataError(
                "expected a tokenizer with a chat template for chat messages; this one has none. "
                "Use an instruction-tuned model, plain text prompts, or --model.tokenizer with a copy that has one "
                "(rlhf template write)",
                code="template/missing",
            )
        self._renderer = renderer
        # A tokenizer may have a template of its own for chats with tools.
        templates = (tokenizer.get_chat_template(), tokenizer.get_chat_template(tools=[]))
        self._has_blocks = [_BLOCK.search(template) is not None for template in templates]
        names = {*tokenizer.all_special_tokens, *tokenizer.get_added_vocab()}
        self._ends = _pattern_of(names)
        self._skeletons = SkeletonMaker(
            self._ends,
            tokenizer.eos_token,
            lambda messages, reply: self._render(messages, reply, None),
        )
        self._shapes: dict[tuple[Any, ...], Skeleton | None] = {}

    def find(
        self, messages: Sequence[Message], learned: Sequence[int], tools: Tools | None = None
    ) -> LearnedText:
        """Return a conversation's rendering with the spans of some of its messages: of the assistant the turn, of
        others the content and the token behind it.

        Control words in contents are ordinary text, but those of the assistant that have a place in answers.

        Args:
            learned: indices, ascending, of the messages to learn.

        Raises:
            RowProblem: the template refuses the messages, or does not show the learned ones as they are.
        """
        template = self._renderer.template
        try:
            messages = template.contents.joined(without_weights(messages))
            try:
                made = self._quoted(messages, learned, tools)
            except RowProblem as problem:
                if problem.kind == CHANGED:
                    self._check_thoughts(messages, learned, tools)
                if problem.kind == CHANGED and any(map(calls_of, messages)):
                    # A template without tools: what it leaves out says more than the answer that it changed.
                    text = self._render(messages, False, tools)
                    template.check(messages, text, reply=False, tools=tools)
                raise
            template.check(messages, made.text, reply=False, tools=tools)
        except DataError as error:
            raise problem_of(error) from error
        return replace(made, media=references_in(messages), out_of_turn=out_of_turn(messages))

    def _check_thoughts(
        self, messages: Sequence[Message], learned: Sequence[int], tools: Tools | None
    ) -> None:
        """Refuse thoughts in a field that the template does not read, if it reads another one."""
        source = self._renderer.tokenizer.get_chat_template(tools=None if tools is None else [])
        read = [one for one in THOUGHT_FIELDS if re.search(rf"\.{one}\b|['\"]{one}['\"]", source)]
        for index in learned:
            given = [field for field in THOUGHT_FIELDS if messages[index].get(field)]
            if read and given and not set(given) & set(read):
                raise RowProblem(
                    CHANGED,
                    f"message {index + 1}: the chat template does not show the thought in {given[0]!r}, and reads "
                    f"thoughts in {read[0]!r}: call this key so",
                )

    def _quoted(
        self, messages: Sequence[Message], learned: Sequence[int], tools: Tools | None
    ) -> LearnedText:
        """Return the conversation's rendering, found with stand-ins for the control words in its contents."""
        quotes = self._renderer.quotes(messages, tools)
        if quotes is None:
            return self._find(messages, learned, tools)
        quoted = self._find(
            quotes.messages(messages), learned, None if tools is None else quotes.value(tools)
        )
        try:
            made = quotes.restored(quoted.text)
        except DataError as error:
            raise RowProblem("control words", str(error)) from error
        chat = made.control_text()
        return LearnedText(
            text=chat.text,
            spans=tuple(map(made.places.span, quoted.spans)),
            is_ended=quoted.is_ended,
            active=chat.active,
            inert=chat.inert,
        )

    def _find(
        self, messages: Sequence[Message], learned: Sequence[int], tools: Tools | None
    ) -> LearnedText:
        answers = [index for index in learned if messages[index]["role"] == ASSISTANT]
        others = [index for index in learned if index not in answers]
        if not others:
            return self._answers(messages, answers, tools)
        said = said_messages(
            messages, others, self._ends, lambda some, reply: self._render(some, reply, tools)
        )
        if not answers:
            return said
        found = self._answers(messages, answers, tools)
        spans = sorted([*found.spans, *said.spans])
        if any(one.end > other.start for one, other in pairwise(spans)):
            raise RowProblem(
                "changed by the template",
                "the chat template shows a message within another one, so that not each is learned by itself "
                "(data.roles)",
            )
        return replace(found, spans=tuple(spans))

    def _answers(
        self, messages: Sequence[Message], learned: Sequence[int], tools: Tools | None
    ) -> LearnedText:
        if self._has_blocks[tools is not None]:
            return self._by_blocks(messages, learned, tools)
        for index, (one, following) in enumerate(pairwise(messages)):
            if index in learned and one["role"] == following["role"] and self._marks[False]:
                raise no_end(self._renderer.generation_prompt, index)

        def render(some: Sequence[Message], reply: bool) -> str:
            return self._render(some, reply, tools)

        text = render(messages, False)
        check_text(text, "the rendered conversation")
        shape = self._shape(tuple(message["role"] for message in messages), tools, render)
        turns = None if shape is None else _fit(shape, messages, text)
        if turns is not None and shape is not None:
            turns = {
                index: _behind(text, turn, shape.begun[index]) for index, turn in turns.items()
            }
            return LearnedText(text=text, spans=tuple(turns[index] for index in learned))
        mark = MARK
        while mark in text:
            mark += "x"
        try:
            spans = tuple(self._by_stand_ins(messages, learned, text, mark, render))
        except RowProblem as problem:
            calling = [index for index in learned if calls_of(messages[index])]
            if not calling:
                raise
            try:
                spans = self._beside_calls(messages, learned, text, mark, render)
            except RowProblem as of_calls:
                # The template took the row, so what it refuses is an answer in the place of a call.
                raise of_calls if problem.kind == REFUSED else problem from problem
        return LearnedText(text=text, spans=spans)

    def _by_stand_ins(
        self,
        messages: Sequence[Message],
        learned: Sequence[int],
        text: str,
        mark: str,
        render: Render,
    ) -> Iterator[Span]:
        results = [index for index, message in enumerate(messages) if message["role"] == TOOL]
        if results:
            # Refuses a template that shows results of tools inside of the assistant's turns: they would be learned.
            self._skeletons.make(messages, sorted([*learned, *results]), mark, render)
        skeleton = self._skeletons.make(messages, learned, mark, render)
        return _fit_turns(skeleton, messages, text, mark)

    def _beside_calls(
        self,
        messages: Sequence[Message],
        learned: Sequence[int],
        text: str,
        mark: str,
        render: Render,
    ) -> tuple[Span, ...]:
        """Return the turns where a template writes calls in other words than answers (gpt-oss), so that no stand-in
        takes the place of a call: calls are found by the renderings that end before and behind them.

        Raises:
            RowProblem: the template shows a call, or what is before it, differently when others follow.
        """
        spans = {
            index: self._call(messages, index, text, render)
            for index in learned
            if calls_of(messages[index])
        }
        answers = [index for index in learned if index not in spans]
        if answers:
            found = self._by_stand_ins(messages, answers, text, mark, render)
            spans.update(zip(answers, found, strict=True))
        return tuple(spans[index] for index in learned)

    def _call(self, messages: Sequence[Message], index: int, text: str, render: Render) -> Span:
        prompt, whole = render(messages[:index], True), render(messages[: index + 1], False)
        shown = whole[len(prompt) :]
        ends = list(self._ends.finditer(shown))
        is_whole = whole.startswith(prompt) and text.startswith(whole)
        if not (is_whole and ends and holds(shown, messages[index])):
            raise changed(messages, index, text[shared_prefix(text, prompt) :])
        if shown[ends[-1].end() :].strip():
            raise RowProblem(
                "no end of turn",
                f"message {index + 1}: expected a chat template that writes a special token behind a call, by which "
                f"the policy learns to stop; it writes {shown[ends[-1].end() :]!r:.40}",
            )
        return Span(len(prompt), len(prompt) + ends[-1].end())

    def _render(self, messages: Sequence[Message], reply: bool, tools: Tools | None) -> str:
        try:
            text = self._renderer.render_text(messages, reply=reply, tools=tools)
        except DataError as error:
            raise problem_of(error) from error
        is_answered = bool(messages) and messages[-1]["role"] == ASSISTANT and not reply
        return text + self._marks[bool(calls_of(messages[-1]))] if is_answered else text

    @cached_property
    def _marks(self) -> Mapping[bool, str]:
        """The marks that go behind a last answer and, under True, behind last calls, by which the policy learns to stop
        (``<|user|>`` and ``<|observation|>`` of GLM); empty where the template ends its turns itself."""
        renderer = self._renderer
        try:
            closing = [] if renderer.end_of_turn else renderer.closing
        except DataError:  # the row says it
            closing = []
        if not closing:
            return {False: "", True: ""}
        ended, called = (
            renderer.decode(ids, skip_special_tokens=False)
            for ids in (closing, renderer.end_of_calls or closing)
        )
        return {False: ended, True: called}

    def _shape(
        self, roles: tuple[str, ...], tools: Tools | None, render: Render
    ) -> Skeleton | None:
        """Return the skeleton of all plain conversations with these roles; None if the template allows none."""
        key = (roles, None if tools is None else json.dumps(tools, sort_keys=True, default=repr))
        if key not in self._shapes:
            if len(self._shapes) >= _MAX_SHAPES:
                self._shapes.clear()
            made = None
            with suppress(RowProblem):  # the row's own skeleton says what is wrong, if anything is
                made = self._skeletons.make_shape(roles, render)
            self._shapes[key] = made
        return self._shapes[key]

    def _by_blocks(
        self, messages: Sequence[Message], learned: Sequence[int], tools: Tools | None
    ) -> LearnedText:
        try:
            text, places = self._renderer.template.rendered(messages, reply=False, tools=tools)
        except DataError as error:
            raise problem_of(error) from error
        moved = partial(self._renderer.writing.moved, text)
        text = self._renderer.writing.written(text)
        blocks = tuple(Span(moved(start), moved(end)) for start, end in places)
        check_text(text, "the rendered conversation")
        answers = [index for index, one in enumerate(messages) if one["role"] == ASSISTANT]
        if len(blocks) != len(answers):
            raise RowProblem(
                "generation blocks",
                f"expected a chat template with one {{% generation %}} block for each of the assistant's "
                f"{len(answers)} messages; it has {len(blocks)}",
            )
        of_message = dict(zip(answers, blocks, strict=True))
        for index in learned:
            shown = text[slice(*of_message[index])]
            if not shown or not holds(shown, messages[index]):
                raise changed(messages, index, shown)
        spans = tuple(of_message[index] for index in learned)
        # A template may write no end at all (LLaVA 1.5): behind the last answer the policy learns that of texts.
        ends = not self._ends.search(text[slice(*spans[-1])]) and spans[-1].end == len(text)
        return LearnedText(text=text, spans=spans, is_ended=ends)


def _pattern_of(names: set[str]) -> re.Pattern[str]:
    ordered = sorted(filter(None, names), key=len, reverse=True)
    return re.compile("|".join(map(re.escape, ordered)) or r"(?!)")


def _fit(skeleton: Skeleton, messages: Sequence[Message], text: str) -> Mapping[int, Span] | None:
    """Return the turns of ``text`` if it is exactly the skeleton with the contents, as they are or all trimmed."""
    if any(message.get(key) for message in messages for key in (*THOUGHT_FIELDS, "tool_calls")):
        return None
    contents = {index: message.get("content") or "" for index, message in enumerate(messages)}
    if not all(isinstance(content, str) for content in contents.values()):
        return None  # a template shows parts, such as images, in its own words
    filled = skeleton.filled(contents)
    if filled.text == text:
        return filled.turns
    filled = skeleton.filled({index: content.strip() for index, content in contents.items()})
    return filled.turns if filled.text == text else None


def _fit_turns(
    skeleton: Skeleton, messages: Sequence[Message], text: str, mark: str
) -> Iterator[Span]:
    """Yield the learned spans of ``text``: the texts between those that the template writes around the stand-ins.

    Raises:
        RowProblem: the texts between are not the answers, up to blanks.
    """
    turns = list(skeleton.turns.items())
    position = turns[0][1].start
    if not text.startswith(skeleton.text[:position]):
        raise changed(messages, turns[0][0], text[shared_prefix(text, skeleton.text) :])
    nexts = [*(turn.start for _, turn in turns[1:]), len(skeleton.text)]
    for (index, turn), until in zip(turns, nexts, strict=True):
        hole = skeleton.holes[index]
        end_of_turn = skeleton.text[hole.end : turn.end]
        closing = skeleton.text[hole.end : until]
        lead = skeleton.text[turn.start : hole.start]
        is_last = until == len(skeleton.text)
        for end in _places(text, closing, position, is_last=is_last):
            turn = Span(position, end)
            if shows(text, turn, messages[index], lead, f"{mark}{index}v"):
                break
        else:
            raise changed(messages, index, text[position:])
        yield _behind(text, Span(position, end + len(end_of_turn)), skeleton.begun[index])
        position = end + len(closing)


def _behind(text: str, turn: Span, begun: str) -> Span:
    """Return a turn without the part of the generation prompt that it begins with, if it does."""
    return Span(turn.start + len(begun) * text.startswith(begun, turn.start), turn.end)


def _places(text: str, part: str, start: int, *, is_last: bool) -> Iterator[int]:
    """Yield where ``part`` occurs from ``start`` on; with ``is_last`` only where it ends the text."""
    if is_last:
        if text.endswith(part) and len(text) - len(part) >= start:
            yield len(text) - len(part)
        return
    place = text.find(part, start)
    while place >= 0:
        yield place
        place = text.find(part, place + 1)
