"""Control words that a template writes around messages, which no answer of the policy has in it."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from rlhf_core.batch.task import Message
from rlhf_core.errors import DataError

from .control_words import ControlWords
from .parsing.families import ANSWER_WORDS
from .rendering import ChatTemplate

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_ANSWER = "Zx7Qv9"
_CHATS: tuple[tuple[Message, ...], ...] = (
    ({"role": "user", "content": "Hello"},),
    (
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": _ANSWER},
        {"role": "user", "content": "Hello"},
    ),
    (
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": _ANSWER},
        {"role": "user", "content": "Hello"},
    ),
)
"""Conversations without a thought and without a tool; a template may refuse some of them."""


def turn_words(
    template: ChatTemplate, tokenizer: PreTrainedTokenizerBase, words: ControlWords
) -> frozenset[str]:
    """Return the control words that begin and end turns and texts.

    They are the tokenizer's own for this (end-of-sequence, padding, ...), and those that the template writes into a
    conversation whose answer is no more than a word, where no answer follows.
    """
    found = set(words.structural)
    if tokenizer.chat_template is not None:
        for chat in _CHATS:
            with suppress(DataError):
                found.update(words.names(template.text(chat, reply=False)))
    return frozenset(found - ANSWER_WORDS)
