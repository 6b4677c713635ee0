"""Conversations that an answer ends, as tokens: what a reward model learns to score, and where its score is read."""

from __future__ import annotations

from collections.abc import Sequence

from rlhf_core.batch.task import Message
from rlhf_core.errors import DataError

from .chat.renderer import TokenizerRenderer
from .learned.chat_spans import ChatSpans
from .learned.tokens import SpanTokenizer
from .rows import RowProblem
from .source import code_of

_NO_END = -1
"""Token behind plain texts, which no conversation is."""


class AnsweredChats:
    """Tokens of conversations by the rules of the rows that ``load_pairs`` reads: spans of turns, control words, ends.

    Raises:
        DataError: the tokenizer has no chat template, or does not tell the characters of its tokens.
    """

    def __init__(self, renderer: TokenizerRenderer) -> None:
        self._chats = ChatSpans(renderer)
        self._tokenizer = SpanTokenizer(renderer, _NO_END)

    def tokens(self, messages: Sequence[Message]) -> list[int]:
        """Return the tokens through the one that ends the last message; what the template writes behind it, such as a
        line break, is left out. Images are one marker each.

        Args:
            messages: a conversation whose last message is the assistant's.

        Raises:
            DataError: the template refuses the messages, or does not show the last one as it is.
        """
        try:
            text = self._chats.find(messages, (len(messages) - 1,))
        except RowProblem as problem:
            raise DataError(problem.reason, code=code_of(problem.kind)) from problem
        (found,) = self._tokenizer.tokenize([text])
        if isinstance(found, RowProblem):
            raise DataError(found.reason, code=code_of(found.kind)) from found
        token_ids: list[int] = found.token_ids[: found.turns[-1, 1]].tolist()
        return token_ids
