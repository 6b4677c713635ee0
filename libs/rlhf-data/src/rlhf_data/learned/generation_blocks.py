"""Chat templates that mark what the assistant writes themselves, by ``{% generation %}`` blocks."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_BLOCK = re.compile(r"\{%-?\s*generation\s*-?%\}")

Tools = Sequence[Mapping[str, Any]]


def has_blocks(tokenizer: PreTrainedTokenizerBase, tools: Tools | None = None) -> bool:
    """Return whether the tokenizer's chat template has such blocks."""
    return _BLOCK.search(_template(tokenizer, tools)) is not None


def _template(tokenizer: PreTrainedTokenizerBase, tools: Tools | None) -> str:
    template: str = tokenizer.get_chat_template(
        tools=None if tools is None else [dict(tool) for tool in tools]
    )
    return template
