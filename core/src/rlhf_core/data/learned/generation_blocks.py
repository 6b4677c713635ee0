"""Chat templates that mark what the assistant writes themselves, by ``{% generation %}`` blocks."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ...batch.task import Message
from ..rows import RowProblem
from .learned_text import Span

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_BLOCK = re.compile(r"\{%-?\s*generation\s*-?%\}")

Tools = Sequence[Mapping[str, Any]]


def has_blocks(tokenizer: PreTrainedTokenizerBase, tools: Tools | None = None) -> bool:
    """Return whether the tokenizer's chat template has such blocks."""
    return _BLOCK.search(_template(tokenizer, tools)) is not None


def render_with_blocks(
    tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message], tools: Tools | None = None
) -> tuple[str, tuple[Span, ...]]:
    """Return a conversation as text, and the blocks in it as spans of characters.

    ``apply_chat_template(..., return_assistant_tokens_mask=True)`` finds the same spans, but looks their ends up among
    tokens: where a tokenizer gives the last character no token, its mask goes on to the end of the text.

    Raises:
        RowProblem: the template refuses the messages.
    """
    from jinja2 import TemplateError
    from transformers.utils.chat_template_utils import render_jinja_template

    try:
        (text,), (spans,) = render_jinja_template(
            [[dict(message) for message in messages]],
            tools=None if tools is None else [dict(tool) for tool in tools],
            chat_template=_template(tokenizer, tools),
            return_assistant_tokens_mask=True,
            **tokenizer.special_tokens_map,
        )
    except (TemplateError, TypeError, ValueError, KeyError) as error:
        raise RowProblem(
            "chat template", f"the chat template refuses the messages: {error}"
        ) from error
    return text, tuple(Span(*span) for span in spans)


def _template(tokenizer: PreTrainedTokenizerBase, tools: Tools | None) -> str:
    template: str = tokenizer.get_chat_template(
        tools=None if tools is None else [dict(tool) for tool in tools]
    )
    return template
