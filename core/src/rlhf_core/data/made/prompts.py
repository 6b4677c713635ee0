"""Prompts in rows that environments make, tokenized when a task is made, because there may be no end of rows."""

from __future__ import annotations

from ...batch.task import Message
from ...config.run import PromptData
from ...errors import DataError
from ..chat.renderer import TokenizerRenderer
from ..prompts import length_problem, tokenize_rows
from ..rows import PromptFormat, RowProblem
from .rows import Row

PROMPT = "prompt"
"""Column of a row with the task's prompt, text or messages; without it the environment writes the first observation."""


class PromptReader:
    """Reader of the column ``prompt``, by the options of ``data``."""

    def __init__(self, data: PromptData, renderer: TokenizerRenderer) -> None:
        self._format = PromptFormat(
            prompt_key=PROMPT, system_prompt=data.system_prompt, chat=data.chat
        )
        self._renderer = renderer
        self._max_tokens = data.max_prompt_tokens

    def read(self, row: Row, where: str) -> tuple[tuple[int, ...], tuple[Message, ...]]:
        """Return a prompt's tokens, and its messages if it is a chat.

        Raises:
            DataError: the prompt cannot be used.
        """
        (found,) = tokenize_rows([(0, row)], self._format, self._renderer, self._max_tokens)
        if isinstance(found, RowProblem):
            raise DataError(f"{where}: {found.reason}") from found
        if problem := length_problem(len(found.token_ids), self._max_tokens):
            raise DataError(f"{where}: {problem.reason}")
        prompt = self._format.prompt(row)
        return tuple(found.token_ids), prompt if isinstance(prompt, tuple) else ()
