"""Conversations as text, by a tokenizer's chat template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ...batch.task import Message
from ...errors import DataError
from .control_words import ControlText, TextSpan

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def render_text(
    tokenizer: PreTrainedTokenizerBase,
    messages: Sequence[Message],
    *,
    reply: bool,
    tools: Sequence[Mapping[str, Any]] | None = None,
) -> str:
    """Return a conversation as text; with ``reply`` the text ends where the policy's turn begins.

    Raises:
        DataError: the tokenizer has no chat template, or the template refuses these messages.
    """
    from jinja2 import TemplateError

    if tokenizer.chat_template is None:
        raise DataError(
            "expected a tokenizer with a chat template for chat messages; this one has none. "
            "Use an instruction-tuned model, or plain text prompts (and text observations)."
        )
    try:
        text: str = tokenizer.apply_chat_template(
            [dict(message) for message in messages],
            tools=[dict(tool) for tool in tools] if tools else None,
            tokenize=False,
            add_generation_prompt=reply,
        )
    except (TemplateError, TypeError, ValueError, KeyError) as error:
        raise DataError(f"the chat template refuses the messages: {error}") from error
    return text


def after(chat: ControlText, start: int) -> ControlText:
    """Return the rest of a text from a place on that is in no control word."""
    if chat.active is None:
        return ControlText(text=chat.text[start:])
    active = [
        TextSpan(span.start - start, span.end - start)
        for span in chat.active
        if span.start >= start
    ]
    return ControlText(text=chat.text[start:], active=tuple(active), inert=chat.inert)
