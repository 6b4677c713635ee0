"""The tokens between two turns of the policy.

A stand-in holds the place of the policy's last answer: what the template writes behind it is what comes between the
turns. So the policy's own tokens are never decoded and tokenized again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import takewhile
from typing import Any, NamedTuple, Protocol

from rlhf_core.batch.task import Message
from rlhf_core.errors import DataError

from .control_words import ControlText
from .rendering import ChatTemplate, after
from .short_histories import USER, ShortHistories
from .tokenizing import TextTokenizer

STAND_IN = "Zx7Qv9"
"""Answer that no template contains or changes, and whose ends merge with no text of a template into one token."""

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
    def next_opening(self) -> list[int]:
        """The special token by which the user's turn begins, where the template writes none behind an answer (GLM-4):
        the policy then ends its turn by writing it. None where it writes an end, or begins a turn with a plain word."""
        if self.end_of_turn:
            return []
        following = self._following((*_OPENING, USER), reply=False, tools=())
        return following[:1] if following and following[0] in self._special else []

    def between(
        self,
        conversation: Sequence[Message],
        messages: Sequence[Message],
        *,
        ended: bool,
        tools: Tools = (),
    ) -> Between:
        """Return the tokens between the policy's last turn and its next one.

        Where the template allows it, its work does not grow with the conversation.

        Args:
            conversation: the messages through the last answer, by which a template may decide how it shows results of
                calls; empty: an answer to a question stands for them.
            ended: the policy wrote an end token itself, so the template's end token is left out.

        Raises:
            DataError: the template refuses the messages, leaves out what one of them says, or hides the answer.
        """
        following, showed_all = self._behind_answer(conversation, messages, tools)
        if ended:
            end = self.end_of_turn
            following = following[len(end) :] if following[: len(end)] == end else following
        return Between(following, showed_all)

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
            # A template may hide the content of an answer that has calls.
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
        stand_in: Message = {"role": "assistant", "content": STAND_IN}
        answer = {**stand_in, "tool_calls": calls} if calls else stand_in
        whole = (*before, answer, *messages)
        new = len(messages) if checked else 0
        return self._following(whole, reply=True, tools=tools, has_calls=bool(calls), new=new)

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
