"""Conversations as the teacher reads them, where it has a chat template or a system prompt of its own."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlhf_config import ResolvedOptions
from rlhf_core import ConfigError
from rlhf_core.contracts import TopTokens, TrajectoryColumns
from rlhf_data import (
    ExampleSets,
    HeldOutSets,
    OtherRendering,
    TokenizerRenderer,
    load_conversations,
    load_renderings,
    load_tokenizer,
    note_other_template,
    read_template,
    vocabulary_of,
)

from ..sets import load_sets
from ..trainer import renderer_of
from .distill_options import MODEL_TEMPLATE, DistillOptions

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class TwoReadings:
    """The rows of a distillation, as each of the two models reads them; row i is the same conversation in both."""

    student: ExampleSets
    teacher: ExampleSets
    ends: tuple[int, int] | None = None
    """The tokens that end the student's turns and the teacher's, where they are two."""

    def as_student(self, top: TopTokens) -> TopTokens:
        """Return the teacher's most probable tokens with the two ends of turns exchanged, so that the student learns to
        end a turn as often as the teacher does, by its own token."""
        if self.ends is None:
            return top
        own, other = self.ends
        ids = top.token_ids
        swapped = np.where(ids == other, own, np.where(ids == own, other, ids))
        return replace(top, token_ids=swapped.astype(ids.dtype))


def load_readings(resolved: ResolvedOptions[Any]) -> TwoReadings:
    """Return the rows of a run's options.

    Raises:
        ConfigError: the teacher's template is missing or cannot be read, or ends turns by no token of the student's.
        DataError: rows cannot be used, or an answer has other tokens in the teacher's rendering.
    """
    run: DistillOptions = resolved.run
    if not run.teacher.rendering_options:
        _note_template(run)
        sets = load_sets(resolved, load_conversations)
        return TwoReadings(student=sets, teacher=sets)
    student, _ = renderer_of(run, None)
    other = _teacher_rendering(run, student)
    both = load_sets(resolved, partial(load_renderings, other=other))
    return TwoReadings(
        student=_part(both, 0),
        teacher=_part(both, 1),
        ends=_ends(student, other.renderer),
    )


def _note_template(run: DistillOptions) -> None:
    """Say in the log that the teacher was trained on another rendering than the one that it reads."""
    assert run.teacher.path is not None
    if run.data.text_key is not None:
        return
    note = note_other_template(
        renderer_of(run, None)[0],
        run.teacher.path,
        "--teacher.path",
        f"To let it read its own: --teacher.chat_template {MODEL_TEMPLATE}.",
        trust_remote_code=run.model.trust_remote_code,
    )
    if note is not None:
        log.warning("%s", note)


def _teacher_rendering(run: DistillOptions, student: TokenizerRenderer) -> OtherRendering:
    teacher, renderer = run.teacher, student
    if teacher.chat_template is not None:
        assert teacher.path is not None
        tokenizer = load_tokenizer(
            teacher.path, trust_remote_code=run.model.trust_remote_code, has_option=False
        )
        if teacher.chat_template != MODEL_TEMPLATE:
            tokenizer.chat_template = read_template(
                teacher.chat_template, "--teacher.chat_template"
            )
        elif tokenizer.chat_template is None:
            raise ConfigError(
                f"--teacher.chat_template {MODEL_TEMPLATE}: expected a teacher whose tokenizer has a chat template; "
                f"that of {teacher.path} has none. Name a file with a template.",
                code="template/missing",
            )
        renderer = TokenizerRenderer.by(run.data, tokenizer)
    prompt = run.data.system_prompt if teacher.system_prompt is None else teacher.system_prompt
    options = " and ".join(f"--{name}" for name in teacher.rendering_options)
    return OtherRendering(renderer=renderer, system_prompt=prompt, options=options)


def _ends(student: TokenizerRenderer, teacher: TokenizerRenderer) -> tuple[int, int] | None:
    """Return the last tokens of the ends of turns of both templates; None where they are one, or there is none."""
    own, other = student.closing, teacher.closing
    if not own or not other or own[-1] == other[-1]:
        return None
    vocabulary = vocabulary_of(student.tokenizer)
    shown = teacher.decode_batch([other[-1:]], skip_special_tokens=False)[0]
    if other[-1] >= vocabulary.size or other[-1] in vocabulary.holes:
        raise ConfigError(
            f"--teacher.chat_template: it ends turns by the token {shown!r:.80} ({other[-1]}), "
            "which the student's tokenizer lacks, so that the teacher's probability of it is lost. Add the token to "
            "the student's tokenizer, or choose another template.",
            code="template/end-token-unknown",
        )
    return own[-1], other[-1]


def _part(sets: ExampleSets, which: int) -> ExampleSets:
    """Return every second sequence: those of the student, 0, or of the teacher, 1."""
    held = sets.held_out
    if held is not None:
        held = HeldOutSets(
            rows=_every_second(held.rows, which),
            sets={name: rows[::2] // 2 for name, rows in held.sets.items()},
        )
    return ExampleSets(
        train=_every_second(sets.train, which),
        sizes=tuple(size // 2 for size in sets.sizes),
        held_out=held,
    )


def _every_second(rows: TrajectoryColumns, which: int) -> TrajectoryColumns:
    places: NDArray[np.int64] = np.arange(which, len(rows), 2)
    return rows.select(places)
