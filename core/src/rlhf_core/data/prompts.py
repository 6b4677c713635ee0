"""Prompts of a source as token columns, which a run makes once at its start."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from ..errors import DataError
from .chat.renderer import TokenizerRenderer
from .rows import BadRow, Prompt, PromptFormat, RowProblem
from .source import Row, Source, Unreadable

_BATCH_ROWS = 1000
CHARACTERS_PER_TOKEN = 100
"""Maximum number of characters for each allowed token in a text that is tokenized: tokens of text have 1 to 20, and
tokenizing a line of 50 MB takes minutes."""
MAX_CHARACTERS = 2**22
"""Maximum number of characters of a text that is tokenized, where the number of tokens has no limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompts:
    """Prompts of a source's usable rows, in order. ``P`` is the number of prompts."""

    rows: NDArray[np.int64]
    """Index in the source of each prompt's row (P,), ascending."""
    token_ids: NDArray[np.int32]
    """Tokens of all prompts, one prompt after the other."""
    offsets: NDArray[np.int64]
    """Index in ``token_ids`` at which each prompt starts (P + 1,); the last entry is the number of tokens."""
    bad: tuple[BadRow, ...]
    """Rows that cannot be used, with the reasons."""

    def __len__(self) -> int:
        return len(self.rows)

    def tokens(self, position: int) -> tuple[int, ...]:
        """Return the tokens of the prompt at ``position``."""
        start, end = self.offsets[position : position + 2]
        return tuple(self.token_ids[start:end].tolist())


def tokenize_prompts(
    source: Source,
    wanted: NDArray[np.bool_],
    format: PromptFormat,
    renderer: TokenizerRenderer,
    max_tokens: int,
) -> Prompts:
    """Return the prompts of the wanted rows, and the wanted rows that cannot be used.

    Args:
        wanted: mask, True at the rows to use; rows of the source behind its end are not wanted.
        max_tokens: largest number of tokens of a prompt; a row with a longer prompt cannot be used.
    """
    rows, token_ids, lengths = array("q"), array("i"), array("q")
    bad: list[BadRow] = []
    wanted_rows = _wanted_rows(source, wanted, format)
    while batch := list(islice(wanted_rows, _BATCH_ROWS)):
        found = tokenize_rows(batch, format, renderer, max_tokens)
        for (index, _), ids in zip(batch, found, strict=True):
            problem = ids if isinstance(ids, RowProblem) else length_problem(len(ids), max_tokens)
            if problem is not None:
                bad.append(BadRow(source.where(index), problem.kind, problem.reason))
                continue
            assert isinstance(ids, list)
            rows.append(index)
            token_ids.extend(ids)
            lengths.append(len(ids))
    return Prompts(
        rows=np.array(rows, dtype=np.int64),
        token_ids=np.array(token_ids, dtype=np.int32),
        offsets=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        bad=tuple(bad),
    )


def read_prompt(row: Row | Unreadable, format: PromptFormat) -> Prompt | RowProblem:
    """Return the prompt of a row, or the row's problem."""
    if isinstance(row, Unreadable):
        return RowProblem("unreadable", row.reason)
    try:
        return format.prompt(row)
    except RowProblem as problem:
        return problem


def tokenize_rows(
    batch: list[tuple[int, Row | Unreadable]],
    format: PromptFormat,
    renderer: TokenizerRenderer,
    max_tokens: int | None,
) -> list[list[int] | RowProblem]:
    """Return each row's tokens, or its problem; calls the tokenizer once for text and once for chats.

    Args:
        max_tokens: largest number of tokens of a prompt; None: ``MAX_CHARACTERS`` is the only limit.
    """
    results: list[list[int] | RowProblem] = []
    texts: dict[int, str] = {}
    chats: dict[int, str] = {}
    for position, (_, row) in enumerate(batch):
        prompt = read_prompt(row, format)
        try:
            text = _rendered(prompt, renderer)
            check_characters(text, max_tokens, "the prompt", "--data.max_prompt_tokens")
        except RowProblem as problem:
            results.append(problem)
            continue
        (chats if isinstance(prompt, tuple) else texts)[position] = text
        results.append([])
    tokens = [
        *zip(texts, renderer.encode_prompts(list(texts.values())), strict=True),
        *zip(chats, renderer.encode_batch(list(chats.values())), strict=True),
    ]
    for position, ids in tokens:
        results[position] = ids
    return results


def _rendered(prompt: Prompt | RowProblem, renderer: TokenizerRenderer) -> str:
    if isinstance(prompt, RowProblem):
        raise prompt
    if isinstance(prompt, str):
        return prompt
    try:
        return renderer.render_text(prompt)
    except DataError as error:
        raise RowProblem("chat template", str(error)) from error


def check_characters(text: str, max_tokens: int | None, what: str, option: str) -> None:
    """Refuse a text that is surely too long, before it is tokenized.

    Raises:
        RowProblem: the text has more than ``CHARACTERS_PER_TOKEN`` characters for each allowed token.
    """
    limit = MAX_CHARACTERS if max_tokens is None else CHARACTERS_PER_TOKEN * max_tokens
    if len(text) <= limit:
        return
    allowed = "" if max_tokens is None else f" for the {max_tokens} tokens of {option}"
    raise RowProblem(
        "too long", f"{what} has {len(text)} characters; expected at most {limit}{allowed}"
    )


def length_problem(length: int, max_tokens: int) -> RowProblem | None:
    """Return the problem of a prompt of ``length`` tokens; None if the length is usable."""
    if not length:
        return RowProblem("empty", "the prompt has no tokens")
    if length <= max_tokens:
        return None
    return RowProblem(
        "too long",
        f"the prompt has {length} tokens, --data.max_prompt_tokens allows {max_tokens}",
    )


def _wanted_rows(
    source: Source, wanted: NDArray[np.bool_], format: PromptFormat
) -> Iterator[tuple[int, Row | Unreadable]]:
    for index, row in enumerate(islice(source.scan(format.columns), len(wanted))):
        if wanted[index]:
            yield index, row
