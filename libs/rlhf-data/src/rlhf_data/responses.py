"""Supervised rows as trajectories: prompt, response to imitate, end-of-sequence."""

from __future__ import annotations

import logging
from contextlib import suppress

import numpy as np

from rlhf_config.run import RunConfig
from rlhf_core.batch.task import Uid
from rlhf_core.batch.trajectory import Trajectory, Turn
from rlhf_core.batch.trajectory_columns import TrajectoryColumns
from rlhf_core.errors import DataError
from rlhf_core.media.reader import ImageReader
from rlhf_core.media.spans import Expanded

from .chat.control_words import ControlText, InertWords
from .chat.renderer import TokenizerRenderer
from .chat.rendering import after, before
from .forms.form import RowKind
from .forms.recognizing import formed
from .learned.conversations import AnswerTexts
from .learned.messages import ASSISTANT
from .prompts import check_characters, renderer_of_row, tokenize_prompts
from .row_images import RowImages, media_of
from .rows import (
    BadRow,
    PromptFormat,
    RowProblem,
    bad_row_error,
    check_not_printed,
    check_text,
    no_column,
)
from .source import Row
from .sources import open_source
from .tokenizer import end_of_turn
from .turn_order import TurnOrder

log = logging.getLogger(__name__)

SUPERVISED = "supervised.data"
"""Option that names the sets."""


def load_responses(
    run: RunConfig, renderer: TokenizerRenderer, eos: int, images: ImageReader | None = None
) -> TrajectoryColumns:
    """Return all rows of ``supervised.data``; the action mask marks the response and the token after it that ends it:
    the chat template's behind an answer to chat messages, ``eos`` behind one to plain text.

    An answer to chat messages has what the template writes around it behind the generation prompt, such as an empty
    thought, or the channel of gpt-oss. It stands there as it is where the template cannot show it there: where the
    generation prompt begins a thought that the template's answers lack.

    Args:
        images: reader of the images of prompts; None: the model reads text alone.

    Raises:
        DataError: a set cannot be opened, or a row has no usable prompt or response or is longer than
            ``train.max_tokens_per_micro_batch``.
    """
    options = run.supervised
    prompt_format = response_prompts(run)
    rows: list[Trajectory] = []
    bad: list[BadRow] = []
    inert, order = InertWords(), TurnOrder()
    turn_end = end_of_turn(renderer.tokenizer)
    columns = run.data.model_copy(update={"prompt_key": options.prompt_key})
    answers = AnswerTexts(columns, renderer)
    total = 0
    for spec in options.data:
        opened = open_source(spec, split=run.data.split)
        found = formed(opened, options, (RowKind.RESPONSES,), spec=spec, option=SUPERVISED)
        source, response_key = found.source, found.columns.response_key
        total += len(source)
        wanted = np.ones(len(source), dtype=bool)
        seen = RowImages.of(images, spec)
        prompts = tokenize_prompts(
            source, wanted, prompt_format, renderer, run.data.max_prompt_tokens, seen
        )
        bad += prompts.bad
        inert, order = inert.joined(prompts.inert), order.joined(prompts.order)
        for position, index in enumerate(prompts.rows.tolist()):
            try:
                row = source.row(index)
                response = response_of(row, response_key)
                most = run.train.max_tokens_per_micro_batch
                check_characters(
                    response, most, "the response", "--train.max_tokens_per_micro_batch"
                )
                answer = renderer.answer_text(response)
                inert = inert.plus(answer.inert, source.where(index))
                tokens = renderer.texts.encode([answer])[0]
                if not {eos, turn_end}.intersection(tokens[-1:]):  # a row that was rendered has one
                    is_chat = not isinstance(prompt_format.prompt(row), str)
                    if is_chat and (shown := _shown(answers, row, response, seen)) is not None:
                        tokens = renderer.texts.encode([shown])[0]
                    if not {eos, turn_end}.intersection(tokens[-1:]):
                        tokens.append(turn_end if is_chat and turn_end is not None else eos)
                prompt = _expanded(prompts.tokens(position), row, prompt_format, seen)
                _check_sampled(tokens, images)
                rows.append(_sequence(len(rows), prompt, tokens, run))
            except RowProblem as problem:
                bad.append(BadRow(source.where(index), problem.kind, problem.reason))
    if bad:
        raise bad_row_error(bad, total, SUPERVISED, None)
    if not rows:
        raise DataError("supervised.data: expected at least one row, got none", code="data/no-rows")
    if inert.rows:
        log.warning("%s", inert.describe(total, SUPERVISED))
    if order.rows:
        log.warning("%s", order.describe(total, SUPERVISED))
    return TrajectoryColumns.from_trajectories(rows)


def response_prompts(run: RunConfig) -> PromptFormat:
    """Return the format of the prompts of ``supervised.data``: that of the run's, in a column of their own.

    Raises:
        DataError: as from ``PromptFormat``.
    """
    return PromptFormat.of(run.data.model_copy(update={"prompt_key": run.supervised.prompt_key}))


def response_of(row: Row, key: str) -> str:
    """Return the response of a row.

    Raises:
        RowProblem: the column is missing, or has no text that can be used.
    """
    if key not in row:
        raise no_column(row, key, "Set --supervised.response_key")
    text = row[key]
    if not isinstance(text, str):
        raise RowProblem("wrong type", f"column {key!r}: expected text, got {type(text).__name__}")
    check_text(text, f"column {key!r}")
    check_not_printed(text, f"column {key!r}")
    return text


def _shown(answers: AnswerTexts, row: Row, response: str, seen: RowImages) -> ControlText | None:
    """Return what the chat template shows of an answer to messages behind the generation prompt, through the end of the
    turn; None: it shows no such answer there."""
    prompt = seen.prompt(row, answers.format.prompt(row))
    assert not isinstance(prompt, str)
    with suppress(RowProblem):
        messages = (*prompt, {"role": ASSISTANT, "content": response})
        found = answers.chats(row).find(messages, (len(prompt),))
        asked = renderer_of_row(row, answers.renderer).chat_text(prompt).text
        if found.text.startswith(asked):
            end = len(found.text[: found.spans[-1].end].rstrip())  # a block may hold a new line too
            return after(before(found.control_text(), end), len(asked))
    return None


def _expanded(
    token_ids: tuple[int, ...], row: Row, prompt_format: PromptFormat, seen: RowImages
) -> Expanded:
    """Return a prompt with all tokens of its images, which fit it: so many tokens were counted before."""
    if seen.reader is None:
        return Expanded(token_ids, ())
    media = media_of(seen.prompt(row, prompt_format.prompt(row)))
    return seen.reader.expand(token_ids, media)


def _check_sampled(tokens: list[int], images: ImageReader | None) -> None:
    if images is not None and set(tokens) & set(images.tokens.never_sampled):
        raise RowProblem(
            "image in a response",
            "the response has a token that stands for images, which a policy never writes; leave it out",
        )


def _sequence(index: int, read: Expanded, tokens: list[int], run: RunConfig) -> Trajectory:
    prompt = read.token_ids
    length = len(prompt) + len(tokens)
    if length > run.train.max_tokens_per_micro_batch:
        raise RowProblem(
            "too long",
            f"prompt and response have {length} tokens, --train.max_tokens_per_micro_batch allows "
            f"{run.train.max_tokens_per_micro_batch}",
        )
    return Trajectory(
        uid=Uid(0, index),
        token_ids=np.array([*prompt, *tokens], dtype=np.int32),
        action_mask=np.arange(length) >= len(prompt),
        rollout_logprobs=np.zeros(len(tokens), dtype=np.float32),
        weight_version=np.zeros(len(tokens), dtype=np.int32),
        turns=(Turn(start=len(prompt), end=length),),
        media=read.spans,
    )
