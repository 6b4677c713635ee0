"""The tokens between two turns of the policy.

A stand-in holds the place of the policy's last answer: what the template writes behind it is what comes between the
turns. So the policy's own tokens are never decoded and tokenized again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from itertools import takewhile
from typing import Any, NamedTuple, Protocol

from rlhf_core.batch.task import Message
from rlhf_core.errors import DataError

from .control_words import ControlText
from .parsing.families import ANSWER_WORDS
from .rendering import ChatTemplate, after
from .short_histories import USER, ShortHistories
from .tokenizing import TextTokenizer

STAND_IN = "Zx7Qv9"
"""Answer that no template contains or changes, and whose ends merge with no text of a template into one token."""

_RESULT = "Kx4Wq2"
"""Result of a tool, likewise."""

_OPENING: tuple[Message, ...] = (USER, {"role": "assistant", "content": STAND_IN})

Tools = Sequence[Mapping[str, Any]]


class ShowChat(Protocol):
    """Function from messages to their rendering."""

    def __call__(
        self, messages: Sequence[Message], *, reply: bool = True, tools: Tools | None = None
    ) -> ControlText: ...


class Between(NamedTuple):
    """Tokens between the policy's last turn and its next one."""

    token_ids: list[int]
    showed_all: bool
    """The template had to show the whole conversation to tell them."""


class ChatTurns:
    """Finder of the tokens between turns, by the chat template of a tokenizer.

    Args:
        show: renders a conversation, whatever the template leaves out of it.
        template: looks for what it leaves out.
    """

    def __init__(self, show: ShowChat, template: ChatTemplate, texts: TextTokenizer) -> None:
        self._show = show
        self._template = template
        self._texts = texts
        self._short = ShortHistories(self._behind_stand_in)
        self._special = frozenset(texts.tokenizer.all_special_ids) | {
            token for token, added in texts.tokenizer.added_tokens_decoder.items() if added.special
        }

    @cached_property
    def end_of_turn(self) -> list[int]:
        """The template's tokens behind an answer, through the first special one, or through the end-of-sequence token
        where only special ones are between (``<|END_RESPONSE|><|END_OF_TURN_TOKEN|>``); none if no token is special."""
        closing = self._following(_OPENING, reply=False, tools=())
        first = next((at for at, token in enumerate(closing) if token in self._special), None)
        if first is None:
            return []
        eos = self._texts.tokenizer.eos_token_id
        behind = list(takewhile(self._special.__contains__, closing[first:]))
        return closing[: first + (behind.index(eos) if eos in behind else 0) + 1]

    @cached_property
    def _end_before_a_question(self) -> list[int]:
        """The template's token that ends an answer which a question follows, if the question begins right behind it by
        the token that begins answers too (``<|end|>`` of gpt-oss, whose last answer ends with ``<|return|>``)."""
        try:
            begun, following = self._opening_of_answers, self._after_a_question([USER], ())[:2]
        except DataError:
            return []
        is_end = following[:1] != begun and begun == following[1:]
        return following[:1] if is_end and self._special.issuperset(following) else []

    @cached_property
    def _shows_results_first(self) -> bool:
        """Whether the template shows results of tools before the content of the answer that called them (Gemma 4), so
        that they are not behind a stand-in in its place."""
        result: Message = {
            "role": "tool",
            "content": _RESULT,
            "name": "look",
            "tool_call_id": "call00000",
        }
        answer = {**_OPENING[1], "tool_calls": _calls_before([result])}
        try:
            text = self._show((USER, answer, result), reply=True).text
        except DataError:
            return False
        return _RESULT in text.partition(STAND_IN)[0]

    @cached_property
    def next_opening(self) -> list[int]:
        """The special token by which the user's turn begins, where the template writes none behind an answer (GLM-4):
        the policy then ends its turn by writing it. None where it writes an end, or begins a turn with a plain word, or
        with the token that begins answers too, which says of no turn that it is over."""
        if self.end_of_turn:
            return []
        opening = self._following((*_OPENING, USER), reply=False, tools=())[:1]
        is_mark = self._special.issuperset(opening) and opening != self._opening_of_answers
        return opening if is_mark else []

    @cached_property
    def end_of_calls(self) -> list[int]:
        """The special token by which the policy ends a turn of calls, where it is another one than that of answers: the
        one that ends the rendering (``<|call|>`` of gpt-oss, ``<|tool_response>`` of Gemma 4) or, of a template that
        ends no turn, the one by which a result begins (``<|observation|>`` of GLM). None where there is no such token,
        or it has a place in answers."""
        result: Message = {
            "role": "tool",
            "content": _RESULT,
            "name": "look",
            "tool_call_id": "call00000",
        }
        called: Message = {
            "role": "assistant",
            "content": "",
            "tool_calls": _calls_before([result]),
        }
        try:
            shown = self._show((USER, called), reply=False)
            whole = self._show((USER, called, result), reply=True)
            known = {*self.end_of_turn, *self._end_before_a_question, *self._opening_of_answers}
        except DataError:
            return []
        if not whole.text.startswith(shown.text):
            return []
        words = [(span, whole.text[slice(*span)]) for span in self._texts.active(whole)]
        size = len(shown.text.rstrip())
        if self.end_of_turn:
            found = [word for span, word in words if span.end == size]
        else:
            found = [word for span, word in words if span.start == len(shown.text)]
        ids = [self._texts.words.ids[word] for word in found if word not in ANSWER_WORDS]
        return [token for token in ids if token in self._special and token not in known]

    @cached_property
    def _opening_of_answers(self) -> list[int]:
        """The first token that the template writes where an answer is to begin; none if it writes nothing there."""
        asked, behind = (self._show([USER], reply=reply).text for reply in (False, True))
        return self._texts.encode([ControlText(text=behind.removeprefix(asked))])[0][:1]

    def between(
        self,
        conversation: Sequence[Message],
        messages: Sequence[Message],
        *,
        ended: bool,
        tools: Tools = (),
        sampled: Sequence[int] = (),
    ) -> Between:
        """Return the tokens between the policy's last turn and its next one.

        Where the template allows it, its work does not grow with the conversation.

        Args:
            conversation: the messages through the last answer, by which a template may decide how it shows results of
                calls; empty: an answer to a question stands for them.
            ended: the policy wrote an end token itself, so the template's end token is left out.
            sampled: all tokens so far. Where the token at which a turn stops begins what follows (``<|user|>`` and
                ``<|observation|>`` of GLM, ``<|tool_response>`` of Gemma 4), they have it already; empty: not known.

        Raises:
            DataError: the template refuses the messages, leaves out what one of them says, or hides the answer.
        """
        following, showed_all = self._behind_answer(conversation, messages, tools)
        if ended:
            ends = [end for end in (self.end_of_turn, self._end_before_a_question) if end]
            closed = next((len(end) for end in ends if following[: len(end)] == end), None)
            following = following[self._twice(sampled, following) if closed is None else closed :]
        return Between(following, showed_all)

    def _twice(self, sampled: Sequence[int], following: Sequence[int]) -> int:
        """Return the number of first tokens of what follows, all special ones, that were sampled at the end already."""
        marks = list(takewhile(self._special.__contains__, following))
        sizes = range(min(len(marks), len(sampled)), 0, -1)
        return next((size for size in sizes if list(sampled[-size:]) == marks[:size]), 0)

    def _behind_answer(
        self, conversation: Sequence[Message], messages: Sequence[Message], tools: Tools
    ) -> Between:
        if conversation and conversation[-1].get("role") == "assistant":
            calls = conversation[-1].get("tool_calls") or ()
        elif calls := _calls_before(messages):
            conversation = _OPENING
        else:
            return Between(self._after_a_question(messages, tools), showed_all=False)
        before = conversation[:-1]
        short = self._short.shortened(before, calls, messages, tools)
        shown = before if short is None else short
        try:
            following = self._behind_stand_in(shown, calls, messages, tools, checked=True)
        except DataError:
            following = self._after_a_question(messages, tools)
        return Between(following, showed_all=short is None)

    def _after_a_question(self, messages: Sequence[Message], tools: Tools) -> list[int]:
        whole = (*_OPENING, *messages)
        return self._following(whole, reply=True, tools=tools, new=len(messages))

    def _behind_stand_in(
        self,
        before: Sequence[Message],
        calls: Sequence[Any],
        messages: Sequence[Message],
        tools: Tools,
        *,
        checked: bool = False,
    ) -> list[int]:
        """Return the tokens behind a stand-in with the calls of an answer, between ``before`` and ``messages``.

        Args:
            checked: refuse a template that leaves out what the ``messages`` say.
        """
        answer: Message = {"role": "assistant", "content": STAND_IN}
        new = len(messages) if checked else 0
        if not calls:
            return self._following((*before, answer, *messages), reply=True, tools=tools, new=new)
        through = (*before, {**answer, "tool_calls": calls})
        whole = (*through, *messages)
        if not self._shows_results_first:
            with suppress(DataError):
                return self._following(whole, reply=True, tools=tools, has_calls=True, new=new)
        try:
            # A template may hide the content of an answer that has calls.
            return self._after_a_question(messages, tools)
        except DataError as error:
            found = self._behind_calls(through, messages, tools, new)
            if found is None:
                raise error
            return found

    def _behind_calls(
        self, through: Sequence[Message], messages: Sequence[Message], tools: Tools, new: int
    ) -> list[int] | None:
        """Return the tokens behind calls without a content, where no stand-in tells them: the special token that ends
        the rendering ``through`` the calls, and what the rendering of all has more; None: there is no such token, or
        the template shows the calls differently once messages follow.

        Raises:
            DataError: the template refuses the messages, or leaves out what one of them says.
        """
        through = (*through[:-1], {**through[-1], "content": ""})
        whole = (*through, *messages)
        shown = self._show(through, reply=False, tools=tools)
        ends = [span for span in self._texts.active(shown) if not shown.text[span.end :].strip()]
        chat = self._show(whole, reply=True, tools=tools)
        if not ends or not chat.text.startswith(shown.text):
            return None
        self._template.check(whole, chat.text, reply=True, first=len(whole) - new)
        return self._tokens_from(chat, ends[-1].start)

    def _following(
        self,
        messages: Sequence[Message],
        *,
        reply: bool,
        tools: Tools,
        has_calls: bool = False,
        new: int = 0,
    ) -> list[int]:
        """Return the tokens behind the stand-in's answer, tokenized together with the text before them.

        Args:
            new: number of messages, the last ones, that the template has to show whole.
        """
        chat = self._show(messages, reply=reply, tools=tools)
        if chat.text.count(STAND_IN) != 1:
            raise DataError(
                "expected a chat template that shows an assistant's answer once and as it is; this one showed it "
                f"{chat.text.count(STAND_IN)} times. Use text observations with this model.",
                code="template/changes-text",
            )
        self._template.check(messages, chat.text, reply=reply, first=len(messages) - new)
        cut = chat.text.index(STAND_IN) + len(STAND_IN)
        if has_calls:
            cut = self._end_of_calls(chat, cut)
        return self._tokens_from(chat, cut)

    def _tokens_from(self, chat: ControlText, cut: int) -> list[int]:
        """Return the tokens of a text from a place on, tokenized together with the text before it."""
        texts = self._texts
        if not texts.tokenizer.is_fast:
            return texts.encode([after(chat, cut)])[0]
        (located,) = texts.locate([chat])
        if any(start < cut < end for start, end in located.spans):
            # One token holds the end of the answer and the text behind it, so the text is cut instead of the tokens.
            return texts.encode([after(chat, cut)])[0]
        pairs = zip(located.token_ids, located.spans, strict=True)
        return [token for token, (start, _) in pairs if start >= cut]

    def _end_of_calls(self, chat: ControlText, start: int) -> int:
        """Return where the template ends the turn whose content ends at ``start`` and is followed by calls."""
        end = self.end_of_turn
        if end:
            word = self._texts.decode(end[-1:], skip_special_tokens=False)
            for span in self._texts.active(chat):
                if span.start >= start and chat.text[slice(*span)] == word:
                    return span.start
        raise DataError(
            "the chat template writes no special token behind calls of tools",
            code="template/no-end-of-calls",
        )


def _calls_before(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Return calls to which the results belong that come first, since templates show no result without its call."""
    calls = []
    for number, message in enumerate(messages):
        if message.get("role") != "tool":
            break
        identity = message.get("tool_call_id") or f"call{number:05}"
        called: dict[str, Any] = {"name": message.get("name") or "tool", "arguments": {}}
        calls.append({"id": identity, "type": "function", "function": called})
    return calls


def first_difference(kept: str, again: str) -> str | None:
    """Return where two texts differ by more than blanks; None if they do not."""
    if "".join(kept.split()) == "".join(again.split()):
        return None
    place = next(
        (n for n, (one, other) in enumerate(zip(kept, again, strict=False)) if one != other),
        min(len(kept), len(again)),
    )
    shown = [text[max(0, place - 10) : place + 30] for text in (kept, again)]
    return (
        f"the template shows the conversation differently from character {place + 1} on: the tokens so far are "
        f"{shown[0]!r} there, the template writes {shown[1]!r}"
    )
