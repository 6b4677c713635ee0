"""Two answers to one prompt, of which one was preferred: sequences that share the tokens of the prompt."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain

import numpy as np

from rlhf_core.batch.task import Message
from rlhf_core.media.loader import images_in
from rlhf_core.media.parts import references_in

from ..chat.renderer import TokenizerRenderer
from ..chat.template.pieces import squeezed, texts_of
from ..forms.chats import apart, as_turns
from ..forms.form import RowKind
from ..row_images import RowImages
from ..rows import RowProblem, with_system_prompt
from ..source import Row
from .conversations import AnswerTexts
from .learned_text import LearnedText
from .messages import ASSISTANT, answer_of, answers_in, conversation_of, tools_of, value_of
from .options import PairColumns, SequenceOptions
from .row_loader import RowLoader
from .sequences import LearnedSequence, cut_to, max_tokens_of
from .tokens import LearnedTokens
from .weights import check_judged, without_weights

IMAGES_OF_ANSWERS = ("chosen_images", "rejected_images")
"""Columns of rows of other trainers, in which each answer of a pair may have been given to images of its own."""


class Pairs:
    """``RowForm`` of pairs."""

    def __init__(
        self, columns: PairColumns, options: SequenceOptions, renderer: TokenizerRenderer
    ) -> None:
        self._columns = columns
        self._options = options
        self._answers = AnswerTexts(columns, renderer)
        self.max_tokens = max_tokens_of(options)

    @property
    def columns(self) -> tuple[str, ...]:
        names = self._columns
        optional = (names.margin_key, names.tools_key)
        return (
            *self._answers.format.columns,
            names.chosen_key,
            names.rejected_key,
            *IMAGES_OF_ANSWERS,
            *(name for name in optional if name is not None),
        )

    @property
    def asked(self) -> tuple[str, ...]:
        return self._answers.format.columns

    def texts(self, row: Row, images: RowImages) -> Sequence[LearnedText]:
        """Return the renderings of the preferred answer and of the other, each with the prompt."""
        names = self._columns
        margin_of(row, names.margin_key)
        _check_images_of_answers(row, images)
        if are_texts(row, names):
            texts = [
                self._answers.answer(row, text, names.tools_key, images)
                for text in answer_texts(row, names)
            ]
        else:
            texts = self._conversations(row, images)
        prompts = [text.text[: text.spans[0].start] for text in texts]
        if prompts[0] != prompts[1]:
            raise RowProblem(
                "changed by the template",
                "the chat template shows the prompt differently before the two answers",
            )
        return texts

    def sequences(self, row: Row, tokens: Sequence[LearnedTokens]) -> Iterable[LearnedSequence]:
        aligned = _with_one_prompt(*tokens)
        chosen, rejected = (cut_to(one, self._options) for one in aligned)
        if np.array_equal(chosen.token_ids, rejected.token_ids):
            raise RowProblem(
                "no difference",
                "the preferred answer and the other are the same tokens"
                + (
                    ", up to --data.max_length; raise it, or leave the row out"
                    if chosen.truncated
                    else ""
                ),
            )
        margin = margin_of(row, self._columns.margin_key)
        return [
            replace(chosen, sample=0, reward=1.0, margin=margin),
            replace(rejected, sample=1, reward=0.0, margin=margin),
        ]

    def _conversations(self, row: Row, images: RowImages) -> list[LearnedText]:
        both = pair_conversations(row, self._columns, images)
        shared = shared_messages(*map(without_weights, both))
        tools = tools_of(row, self._columns.tools_key)
        found = []
        for one in both:
            answers = answers_in(one, start=shared)
            check_judged(one, answers)
            found.append(self._answers.chats(row).find(one, answers, tools))
        return found


def _check_images_of_answers(row: Row, images: RowImages) -> None:
    """Refuse an answer with other images than the prompt: both answers of a pair are learned behind one prompt.

    Raises:
        RowProblem: names the column.
    """
    if not images.sees or images.key == "":
        return
    shared = images.column(row)
    for name in IMAGES_OF_ANSWERS:
        if name == shared or not images_in(row.get(name)):
            continue
        if shared is None or images_in(row[name]) != images_in(row[shared]):
            beside = (
                "no other column has any" if shared is None else f"column {shared!r} has others"
            )
            raise RowProblem(
                "images of one answer",
                f"column {name!r} has images for one answer alone, and {beside}; expected both answers to one prompt "
                "with one list of images. Put images that both answers see into the column 'images' and leave "
                f"{name!r} out; leave out a row whose answers see different ones",
            )


def margin_of(row: Row, key: str | None) -> float | None:
    """Return how much better the preferred answer of a row is; None where no column says it.

    Raises:
        RowProblem: the column has no finite number, as a number or as text.
    """
    if key is None:
        return None
    margin = _number(value_of(row, key, "margin_key"))
    if isinstance(margin, bool) or not isinstance(margin, int | float) or not math.isfinite(margin):
        raise RowProblem(
            "bad margin", f"column {key!r}: expected a finite number, got {margin!r:.60}"
        )
    return float(margin)


def _number(value: object) -> object:
    """Return a text that is a number as that number, since cells of CSV are text; anything else as it is."""
    if isinstance(value, str) and "_" not in value:
        with suppress(ValueError):
            return float(value)
    return value


def are_texts(row: Row, names: PairColumns) -> bool:
    """Return whether the answers of a row are texts, and not lists of messages.

    Raises:
        RowProblem: one is missing or of another type than the other, or they are the same.
    """
    chosen = value_of(row, names.chosen_key, "chosen_key")
    rejected = value_of(row, names.rejected_key, "rejected_key")
    if chosen == rejected:
        raise RowProblem("no difference", "the preferred answer and the other are the same")
    if isinstance(chosen, str) != isinstance(rejected, str):
        raise RowProblem(
            "wrong type",
            f"expected two texts or two lists of messages; got {type(chosen).__name__} and {type(rejected).__name__}",
        )
    return isinstance(chosen, str)


def answer_texts(row: Row, names: PairColumns) -> tuple[str, str]:
    """Return the preferred answer and the other.

    Raises:
        RowProblem: one has no text that can be used.
    """
    chosen = answer_of(row, names.chosen_key, "chosen_key")
    return chosen, answer_of(row, names.rejected_key, "rejected_key")


def pair_conversations(
    row: Row, names: PairColumns, images: RowImages
) -> list[tuple[Message, ...]]:
    """Return the preferred conversation and the other, each with the prompt and the system prompt.

    Raises:
        RowProblem: one of them is not a usable conversation.
    """
    both = [
        conversation_of(as_turns(row[key]), key, parts=images.sees)
        for key in (names.chosen_key, names.rejected_key)
    ]
    is_whole = both[0][0]["role"] != ASSISTANT
    if is_whole:
        _check_prompt_inside(row, names, both)
    prompt = _chat_prompt(row, names, images, is_whole=is_whole)
    if prompt:
        both = [tuple(chain(*apart(prompt, one))) for one in both]
    return [images.chat(row, with_system_prompt(one, names.system_prompt)) for one in both]


def _check_prompt_inside(row: Row, names: PairColumns, both: Sequence[Sequence[Message]]) -> None:
    """Refuse a prompt of text beside whole conversations that begin with other words: nothing would read it."""
    prompt = row.get(names.prompt_key)
    if not isinstance(prompt, str) or any(references_in(one) for one in both):
        return
    asked, said = squeezed(prompt), [[*map(squeezed, _texts(one))] for one in both]
    # A prompt may be one message, or all of them in other words, such as a transcript.
    if not all(
        any(asked in text for text in texts) or all(text in asked for text in texts[:-1])
        for texts in said
    ):
        raise RowProblem(
            "no shared prompt",
            f"expected the text of column {names.prompt_key!r} in both conversations, which begin with a message of "
            f"the {both[0][0]['role']}; it is not there, and nothing would read it: {prompt!r:.60}. Put it into the "
            "conversations, leave the column out, or give the answers of the assistant alone",
        )


def _texts(messages: Sequence[Message]) -> list[str]:
    return ["".join(texts_of({**message, "role": "user"})) for message in messages]


def _chat_prompt(
    row: Row, names: PairColumns, images: RowImages, *, is_whole: bool
) -> tuple[Message, ...]:
    """Return the messages of the prompt's column; none where it has no messages.

    Args:
        is_whole: the answers are whole conversations, in which a prompt of text is already.
    """
    value = row.get(names.prompt_key)
    if isinstance(value, str) and not is_whole:
        return ({"role": "user", "content": value},)
    if value is None or isinstance(value, str):
        return ()
    return conversation_of(value, names.prompt_key, parts=images.sees)


def shared_messages(chosen: Sequence[Message], rejected: Sequence[Message]) -> int:
    """Return the number of messages before the answers, which both conversations begin with.

    Raises:
        RowProblem: there are none, or an assistant's message does not follow in both.
    """
    shared = 0
    while shared < min(len(chosen), len(rejected)) and chosen[shared] == rejected[shared]:
        shared += 1
    rest = [one[shared:] for one in (chosen, rejected)]
    if not shared or not all(one and one[0]["role"] == ASSISTANT for one in rest):
        raise RowProblem(
            "no shared prompt",
            "expected two conversations that begin with the same messages, and then an answer of the assistant in "
            f"each; they share {shared} of {len(chosen)} and {len(rejected)} messages. Where "
            "the prompt is in a column of its own, set --data.prompt_key",
        )
    return shared


def _with_one_prompt(chosen: LearnedTokens, rejected: LearnedTokens) -> list[LearnedTokens]:
    """Return both answers with the same tokens before the first learned one.

    The tokenizer may join the end of the prompt with the beginning of an answer. Then the tokens that differ are
    learned in both.
    """
    length = min(chosen.turns[0, 0], rejected.turns[0, 0])
    differs = np.flatnonzero(chosen.token_ids[:length] != rejected.token_ids[:length])
    start = int(differs[0]) if len(differs) else int(length)
    aligned = []
    for one in (chosen, rejected):
        turns = one.turns.copy()
        turns[0, 0] = start
        aligned.append(replace(one, turns=turns))
    return aligned


load_pairs = RowLoader(Pairs, (RowKind.PAIRS,))
"""Reads pairs as two sequences each: sequence 2 i is the preferred answer of pair i, 2 i + 1 the other.

Both have the same tokens up to the first learned one. ``uid.sample`` is 0 and 1, ``reward`` 1 and 0, and with
``margin_key`` ``rewards["margin"]`` is the pair's margin.
"""
