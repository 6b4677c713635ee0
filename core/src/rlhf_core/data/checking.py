"""Check of every row of a data set against the needs of a run, for ``rlhf data check``."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..media.desk import MediaDesk
from .chat.control_words import InertWords
from .chat.renderer import TokenizerRenderer
from .learned.messages import answers_in, conversation_of, value_of, with_system_prompt
from .prompts import length_problem, read_prompt, tokenize_rows
from .row_images import RowImages
from .rows import BadRow, Prompt, PromptFormat, RowProblem, check_text
from .source import Row, Source, Unreadable

_BATCH_ROWS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectations:
    """Conditions that rows have to satisfy."""

    format: PromptFormat
    """Format of the prompts."""
    messages_key: str | None = None
    """Column with whole conversations to learn from, instead of prompts: each has an answer. Needs no renderer, since
    what is learned of a conversation is tokenized where it is learned."""
    label_key: str | None = None
    """Name of a column that every row must have, for its reward."""
    id_key: str | None = None
    """Name of a column whose values must not repeat."""
    renderer: TokenizerRenderer | None = None
    """Renderer that tries the chat template and counts tokens; without a renderer lengths are in characters."""
    max_tokens: int | None = None
    """Largest number of tokens of a prompt."""
    max_characters: int | None = None
    """Largest number of characters of a prompt."""
    desk: MediaDesk | None = None
    """Reader of images, those of ``format.image_key`` and those within messages; None: a row with an image has a
    problem."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceReport:
    """Findings in one source."""

    total: int
    """Number of rows."""
    bad: tuple[BadRow, ...]
    """Problems of rows; a row may have several."""
    lengths: NDArray[np.int64]
    """Lengths of the usable prompts, in tokens, or in characters without a renderer."""
    duplicates: tuple[tuple[str, str], ...]
    """Places of rows whose prompt occurred before, each with the place of the first occurrence."""
    inert: InertWords = field(default_factory=InertWords)
    """Count of the rows with control words, which a run reads as ordinary text; none without a renderer."""

    @property
    def num_bad(self) -> int:
        """Number of rows that cannot be used."""
        return len({row.where for row in self.bad})


def check_source(
    source: Source, expected: Expectations, folder: Path | None = None
) -> SourceReport:
    """Return the report on a source: all problems of its rows, lengths of prompts, and repeated prompts.

    Args:
        folder: start of relative paths of images; None: where the process was started.
    """
    images = RowImages(desk=expected.desk, key=expected.format.image_key, folder=folder)
    bad: list[BadRow] = []
    lengths = array("q")
    seen: dict[bytes, int] = {}
    ids: dict[object, int] = {}
    duplicates: list[tuple[str, str]] = []
    inert = InertWords()
    rows = enumerate(source.scan())
    while batch := list(islice(rows, _BATCH_ROWS)):
        for (index, row), measured in zip(batch, _measured(batch, expected, images), strict=True):
            where = source.where(index)
            prompt, length = measured.prompt, measured.length
            inert = inert.plus(measured.inert, where)
            problems = [
                *_prompt_problems(prompt, length, expected),
                *_column_problems(row, expected),
            ]
            problems += _repeated_id(row, ids, index, source, expected.id_key)
            bad += [BadRow(where, problem.kind, problem.reason) for problem in problems]
            if problems or isinstance(prompt, RowProblem):
                continue
            lengths.append(length)
            first = seen.setdefault(_digest(prompt), index)
            if first != index:
                duplicates.append((where, source.where(first)))
    return SourceReport(
        total=len(source),
        bad=tuple(bad),
        lengths=np.array(lengths, dtype=np.int64),
        duplicates=tuple(duplicates),
        inert=inert,
    )


class _Measured(NamedTuple):
    """A prompt or a row's problem, the prompt's length, and its control words that are ordinary text."""

    prompt: Prompt | RowProblem
    length: int
    inert: tuple[str, ...] = ()


def _measured(
    batch: list[tuple[int, Row | Unreadable]], expected: Expectations, images: RowImages
) -> Iterator[_Measured]:
    """Yield prompts with their lengths; a chat that the template refuses is a problem."""
    if expected.messages_key is not None:
        conversations = [_conversation(row, expected, images) for _, row in batch]
        yield from (_Measured(chat, _characters(chat)) for chat in conversations)
        return
    prompts = [read_prompt(row, expected.format, images) for _, row in batch]
    if expected.renderer is None:
        yield from (_Measured(prompt, _characters(prompt)) for prompt in prompts)
        return
    found = tokenize_rows(batch, expected.format, expected.renderer, expected.max_tokens, images)
    for prompt, tokens in zip(prompts, found, strict=True):
        if isinstance(tokens, RowProblem):
            yield _Measured(tokens, 0)
        else:
            yield _Measured(prompt, tokens.length, tokens.inert)


def _conversation(
    row: Row | Unreadable, expected: Expectations, images: RowImages
) -> Prompt | RowProblem:
    """Return the conversation of a row, or the row's problem."""
    if isinstance(row, Unreadable):
        return RowProblem(row.kind, row.reason)
    key, system_prompt = expected.messages_key, expected.format.system_prompt
    assert key is not None
    try:
        given = conversation_of(value_of(row, key, "messages_key"), key, parts=images.sees)
        messages = images.chat(row, with_system_prompt(given, system_prompt))
        answers_in(messages)
    except RowProblem as problem:
        return problem
    return messages


def _prompt_problems(
    prompt: Prompt | RowProblem, length: int, expected: Expectations
) -> Iterator[RowProblem]:
    if isinstance(prompt, RowProblem):
        yield prompt
        return
    if expected.renderer is not None and expected.max_tokens is not None:
        problem = length_problem(length, expected.max_tokens)
        if problem is not None:
            yield problem
    characters = _characters(prompt)
    if expected.max_characters is not None and characters > expected.max_characters:
        yield RowProblem(
            "too long",
            f"the prompt has {characters} characters, --max-prompt-characters allows {expected.max_characters}",
        )


def _column_problems(row: Row | Unreadable, expected: Expectations) -> Iterator[RowProblem]:
    key = expected.label_key
    if key is None or isinstance(row, Unreadable):
        return
    if key not in row:
        yield RowProblem(
            "missing label", f"expected a column {key!r}; the row has {', '.join(row)}"
        )
    elif row[key] is None:
        yield RowProblem("missing label", f"column {key!r} is null")
    elif isinstance(row[key], str):
        try:
            check_text(row[key], f"column {key!r}")
        except RowProblem as problem:
            yield problem


def _repeated_id(
    row: Row | Unreadable, ids: dict[object, int], index: int, source: Source, key: str | None
) -> list[RowProblem]:
    if key is None or isinstance(row, Unreadable):
        return []
    if row.get(key) is None:
        return [RowProblem("missing id", f"expected a value in column {key!r}, got none")]
    value = row[key] if isinstance(row[key], str | int) else repr(row[key])
    first = ids.setdefault(value, index)
    if first == index:
        return []
    return [RowProblem("repeated id", f"{source.where(first)} has {key} {value!r} too")]


def _characters(prompt: Prompt | RowProblem) -> int:
    if isinstance(prompt, RowProblem):
        return 0
    if isinstance(prompt, str):
        return len(prompt)
    return sum(len(str(message.get("content", ""))) for message in prompt)


def _digest(prompt: Prompt) -> bytes:
    text = prompt if isinstance(prompt, str) else repr(prompt)
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=12).digest()
