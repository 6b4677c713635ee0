"""Spans of messages that others than the assistant wrote, for a policy that learns to write them, as a simulator of
users does.

Source: prime-rl's ``data.loss_mask.user`` and axolotl's ``roles_to_train``. There the mark before a message
(``<|im_start|>user``) is learned too; here it is not, since it is what such a policy is asked with.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from rlhf_core.batch.task import Message

from ..rows import RowProblem, check_text
from .learned_text import LearnedText, Span
from .messages import ASSISTANT
from .shown_answers import CHANGED
from .skeleton import MARK, Render


def said_messages(
    messages: Sequence[Message], learned: Sequence[int], ends: re.Pattern[str], render: Render
) -> LearnedText:
    """Return a conversation's rendering with the spans of some messages: from the beginning of the content through the
    first special token behind it.

    A second rendering, with stand-ins for the contents of all but the assistant, tells where they are.

    Args:
        learned: indices, ascending, of the messages, none the assistant's, each with a text as content.
        ends: pattern of the tokens that can end a message.

    Raises:
        RowProblem: the template refuses the messages, shows one not as it is, or writes no special token behind it.
    """
    text = render(messages, False)
    check_text(text, "the rendered conversation")
    mark = MARK
    while mark in text:
        mark += "x"
    words = {
        index: f"{mark}{index}v"
        for index, message in enumerate(messages)
        if index in learned or (message["role"] != ASSISTANT and message.get("content"))
    }
    stood = [
        {**message, "content": words[index]} if index in words else message
        for index, message in enumerate(messages)
    ]
    rest, place, spans = render(stood, False), 0, []
    nexts = [*list(words.values())[1:], None]
    for (index, word), following in zip(words.items(), nexts, strict=True):
        before, found, rest = rest.partition(word)
        content = str(messages[index]["content"])
        if not text.startswith(before + content, place):
            content = content.strip()
        if not found or not text.startswith(before + content, place):
            raise RowProblem(
                CHANGED,
                f"message {index + 1}: the chat template does not show it once and as it is, so that no message of its "
                "role is learned; leave the role out of --data.roles",
            )
        place += len(before)
        behind = rest if following is None else rest.partition(following)[0]
        if index in learned:
            end = ends.search(behind)
            if end is None:
                raise _no_end(index, behind)
            spans.append(Span(place, place + len(content) + end.end()))
        place += len(content)
    if text[place:] != rest:
        raise RowProblem(CHANGED, "the chat template writes other words beside other contents")
    return LearnedText(text=text, spans=tuple(spans))


def _no_end(index: int, shown: str) -> RowProblem:
    return RowProblem(
        "no end of turn",
        f"message {index + 1}: expected a chat template that writes a special token behind it, by which the policy "
        f"learns to stop; it writes {shown!r:.40}. Leave its role out of data.roles",
    )
