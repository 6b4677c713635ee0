"""Prompts of a source as token columns, which a run makes once at its start."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlhf_core.errors import DataError

from .chat.control_words import ControlText, InertWords
from .chat.renderer import TokenizerRenderer
from .chat.template_kwargs import renderer_of
from .files.pace import with_progress
from .row_images import RowImages, media_of
from .rows import BadRow, Prompt, PromptFormat, RowProblem, problem_of
from .source import MAX_CHARACTERS, TEMPLATE_KWARGS, Row, Source, Unreadable
from .turn_order import TurnOrder, out_of_turn

_BATCH_ROWS = 1000
CHARACTERS_PER_TOKEN = 100
"""Maximum number of characters for each allowed token in a text that is tokenized: tokens of text have 1 to 20, and
tokenizing a line of 50 MB takes minutes."""


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
    inert: InertWords = field(default_factory=InertWords)
    """Count of the rows whose control words are ordinary text."""
    order: TurnOrder = field(default_factory=TurnOrder)
    """Count of the rows whose roles do not alternate."""
    num_images: int = 0
    has_chats: bool = True
    """Whether a prompt may be chat messages; False: all are plain text."""

    def __len__(self) -> int:
        return len(self.rows)

    def tokens(self, position: int) -> tuple[int, ...]:
        """Return the tokens of the prompt at ``position``."""
        start, end = self.offsets[position : position + 2]
        return tuple(self.token_ids[start:end].tolist())


class PromptTokens(NamedTuple):
    """Tokens of one prompt."""

    token_ids: list[int]
    """With one marker for each image."""
    inert: tuple[str, ...]
    """Control words of the prompt, of other models too, that are ordinary text."""
    length: int
    """Number of tokens that the model reads: all those of images count."""
    num_images: int = 0
    out_of_turn: str | None = None
    """The prompt's first message that is out of turn."""
    is_chat: bool = False


def tokenize_prompts(
    source: Source,
    wanted: NDArray[np.bool_],
    format: PromptFormat,
    renderer: TokenizerRenderer,
    max_tokens: int,
    images: RowImages | None = None,
) -> Prompts:
    """Return the prompts of the wanted rows, and the wanted rows that cannot be used.

    Args:
        wanted: mask, True at the rows to use; rows of the source behind its end are not wanted.
        max_tokens: largest number of tokens of a prompt; a row with a longer prompt cannot be used.
        images: reader of the rows' images; None: rows with an image cannot be used.
    """
    rows, token_ids, lengths = array("q"), array("i"), array("q")
    bad: list[BadRow] = []
    inert, order, num_images, has_chats = InertWords(), TurnOrder(), 0, False
    images = images or RowImages()
    wanted_rows = with_progress(
        _wanted_rows(source, wanted, (*format.columns, *images.columns)),
        int(wanted.sum()),
        source.name,
    )
    while batch := list(islice(wanted_rows, _BATCH_ROWS)):
        found = tokenize_rows(batch, format, renderer, max_tokens, images)
        for (index, _), tokens in zip(batch, found, strict=True):
            problem = (
                tokens
                if isinstance(tokens, RowProblem)
                else length_problem(tokens.length, max_tokens)
            )
            if problem is not None:
                bad.append(BadRow(source.where(index), problem.kind, problem.reason))
                continue
            assert isinstance(tokens, PromptTokens)
            rows.append(index)
            token_ids.extend(tokens.token_ids)
            lengths.append(len(tokens.token_ids))
            num_images += tokens.num_images
            has_chats |= tokens.is_chat
            inert = inert.plus(tokens.inert, source.where(index)) if tokens.inert else inert
            if tokens.out_of_turn is not None:
                order = order.plus(tokens.out_of_turn, source.where(index))
    return Prompts(
        rows=np.array(rows, dtype=np.int64),
        token_ids=np.array(token_ids, dtype=np.int32),
        offsets=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        bad=tuple(bad),
        inert=inert,
        order=order,
        num_images=num_images,
        has_chats=has_chats,
    )


def read_prompt(
    row: Row | Unreadable, format: PromptFormat, images: RowImages | None = None
) -> Prompt | RowProblem:
    """Return the prompt of a row, or the row's problem. The store gets no image of it."""
    if isinstance(row, Unreadable):
        return RowProblem(row.kind, row.reason)
    try:
        return (images or RowImages()).measuring().prompt(row, format.prompt(row))
    except RowProblem as problem:
        return problem


def tokenize_rows(
    batch: list[tuple[int, Row | Unreadable]],
    format: PromptFormat,
    renderer: TokenizerRenderer,
    max_tokens: int | None,
    images: RowImages | None = None,
) -> list[PromptTokens | RowProblem]:
    """Return each row's tokens, or its problem; calls the tokenizer once for text and once for chats.

    Args:
        max_tokens: largest number of tokens of a prompt; None: ``MAX_CHARACTERS`` is the only limit.
        images: reader of the rows' images; None: an image is a row's problem.
    """
    images = images or RowImages()
    prompts = [read_prompt(row, format, images) for _, row in batch]
    results: dict[int, PromptTokens | RowProblem] = {}
    texts: dict[int, ControlText] = {}
    chats: dict[int, ControlText] = {}
    for position, ((_, row), prompt) in enumerate(zip(batch, prompts, strict=True)):
        try:
            text = _rendered(row, prompt, format, renderer)
            check_characters(text.text, max_tokens, "the prompt", "--data.max_prompt_tokens")
        except RowProblem as problem:
            results[position] = problem
            continue
        (chats if isinstance(prompt, tuple) else texts)[position] = text
    results |= _encoded(texts, renderer.encode_prompts, renderer)
    results |= _encoded(chats, renderer.texts.encode, renderer)
    return [_measured(results[position], prompt, images) for position, prompt in enumerate(prompts)]


def _measured(
    found: PromptTokens | RowProblem, prompt: Prompt | RowProblem, images: RowImages
) -> PromptTokens | RowProblem:
    """Return tokens with the length that they have with all tokens of images."""
    if isinstance(found, RowProblem) or isinstance(prompt, RowProblem | str):
        return found
    try:
        length = images.num_tokens(found.token_ids, prompt)
        return found._replace(
            length=length,
            num_images=len(media_of(prompt)),
            out_of_turn=out_of_turn(prompt),
            is_chat=True,
        )
    except RowProblem as problem:
        return problem


def _encoded(
    texts: dict[int, ControlText],
    encode: Callable[[Sequence[ControlText]], list[list[int]]],
    renderer: TokenizerRenderer,
) -> dict[int, PromptTokens | RowProblem]:
    try:
        found = encode(list(texts.values()))
    except DataError as error:
        if len(texts) == 1:
            return dict.fromkeys(texts, RowProblem("control words", str(error)))
        one_by_one: dict[int, PromptTokens | RowProblem] = {}
        for position, text in texts.items():
            one_by_one |= _encoded({position: text}, encode, renderer)
        return one_by_one
    read_as_text = renderer.texts.words.read_as_text
    return {
        position: PromptTokens(ids, read_as_text(text.text, text.inert), len(ids))
        for (position, text), ids in zip(texts.items(), found, strict=True)
    }


def _rendered(
    row: Row | Unreadable,
    prompt: Prompt | RowProblem,
    format: PromptFormat,
    renderer: TokenizerRenderer,
) -> ControlText:
    if isinstance(prompt, RowProblem):
        raise prompt
    try:
        if not isinstance(prompt, str):
            return renderer_of_row(row, renderer).chat_text(prompt)
        check_plain(row, renderer)
        return plain_prompt({} if isinstance(row, Unreadable) else row, prompt, format, renderer)
    except DataError as error:
        raise problem_of(error) from error


def renderer_of_row(row: Row | Unreadable, renderer: TokenizerRenderer) -> TokenizerRenderer:
    """Return the renderer with a row's variables for the chat template.

    Raises:
        RowProblem: the column holds none, or the template does not read them.
    """
    if isinstance(row, Unreadable):
        return renderer
    try:
        return renderer_of(row, renderer)
    except DataError as error:
        raise RowProblem(TEMPLATE_KWARGS, str(error)) from error


def check_plain(row: Row | Unreadable, renderer: TokenizerRenderer) -> None:
    """Refuse variables for the chat template where a text is plain, and no template renders it.

    Raises:
        RowProblem: the run or the row gives such variables.
    """
    if given := renderer_of_row(row, renderer).template_kwargs:
        raise RowProblem(
            TEMPLATE_KWARGS,
            f"{TEMPLATE_KWARGS} has {', '.join(given)}, but the text is plain, and no chat template renders it. Add "
            "--data.chat, or leave them out",
        )


def plain_prompt(
    row: Row, prompt: str, format: PromptFormat, renderer: TokenizerRenderer
) -> ControlText:
    """Return a row's plain-text prompt, whose control words are ordinary text, but those of ``data.template`` itself.

    Raises:
        DataError: the template changes control words.
    """
    text = renderer.texts.text(prompt)
    if format.template is None or not text.inert:
        return text
    quotes = renderer.quotes(row)
    if quotes is None:
        return ControlText(text=prompt)
    filled = format.prompt(quotes.value(row))
    assert isinstance(filled, str)
    return quotes.restored(filled).control_text()


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
        "too long", f"the prompt has {length} tokens, --data.max_prompt_tokens allows {max_tokens}"
    )


def _wanted_rows(
    source: Source, wanted: NDArray[np.bool_], columns: Sequence[str]
) -> Iterator[tuple[int, Row | Unreadable]]:
    for index, row in enumerate(islice(source.scan(columns), len(wanted))):
        if wanted[index]:
            yield index, row
