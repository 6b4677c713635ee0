"""The file of episodes: one JSON line for each, in the order of the jobs.

A killed process leaves whole lines, perhaps half of one, and perhaps some episodes of a job without the others. What is
behind the last whole job is cut off when the file is opened again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rlhf_core import ResumeError
from rlhf_core.contracts import Message

from ..worklist.record_lines import record_of
from .jobs import EvalJob


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """One sequence of tokens of an episode."""

    token_ids: tuple[int, ...]
    turns: tuple[tuple[int, int], ...]
    """Index of the first token of each answer, and the index after its last one."""
    images: tuple[Mapping[str, Any], ...] = ()
    """Images in their order: ``file`` from the folder of this file on, ``width``, ``height``, and ``tokens``, the index
    of the first one and that after the last one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeRecord:
    """One line of the file."""

    set: str
    """Name of the task's set: of a data set, or of an environment."""
    temperature: float
    uid: str
    """``epoch.task.episode.0``."""
    task: str
    """Name of the task within its set: its row's ``key``, else its index."""
    digest: str
    """Digest of the task's row."""
    prompt: str
    """Text before the first answer; a chat is rendered by the chat template."""
    messages: tuple[Message, ...] | None
    """The conversation, as far as there is one: the prompt of a chat, and with a server all messages; else null."""
    response: str
    """Answers and environment text after the prompt, without special tokens."""
    segments: tuple[Segment, ...] | None
    """The episode as tokens; null where a server answered, which gives none."""
    reward: float | None
    """Reward of the whole episode; null where it could not be scored."""
    rewards: Mapping[str, float] = field(default_factory=dict)
    """Each reward's own score, by name."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Numbers that executor, environment and rewards report."""
    end: str
    """Why it ended: finished, length, turns, context, environment_error, timeout or aborted; of one that was left out,
    the reason."""
    turns: int
    """Number of answers."""
    tokens_in: int
    """Tokens that the model read, over all its requests."""
    tokens_out: int
    """Tokens that it wrote."""
    truncated: bool
    """The last answer hit a token limit."""
    dropped: str | None = None
    """Why there is no reward."""

    def to_line(self) -> str:
        return json.dumps(asdict(self), ensure_ascii=True)


def left_out(job: EvalJob, sample: int, reason: str) -> EpisodeRecord:
    """Return an episode that its executor gave up, as the policy for its error says."""
    return EpisodeRecord(
        set=job.set,
        temperature=job.temperature,
        uid=str(job.task.uid._replace(sample=sample)),
        task=job.key,
        digest=job.digest,
        prompt="",
        messages=None,
        response="",
        segments=(),
        reward=None,
        end=reason,
        turns=0,
        tokens_in=0,
        tokens_out=0,
        truncated=False,
        dropped=reason,
    )


def keep_whole_jobs(path: Path, jobs: Iterator[EvalJob]) -> int:
    """Cut the file behind its last whole job, and return the number of jobs that are left in it.

    Args:
        jobs: all jobs in their order, made as far as the file goes.

    Raises:
        ResumeError: a line belongs to another job, or cannot be read.
    """
    if not path.exists():
        return 0
    whole = kept = 0
    job: EvalJob | None = None
    sample = size = 0
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                break
            if job is None:
                job, sample = next(jobs, None), 0
            _check_line(path, number, line, job, sample)
            assert job is not None
            sample, size = sample + 1, size + len(line)
            if sample == job.samples:
                whole, kept, job = whole + 1, size, None
    os.truncate(path, kept)
    return whole


def _check_line(path: Path, number: int, line: bytes, job: EvalJob | None, sample: int) -> None:
    record = record_of(path, number, line, EpisodeRecord)
    expected = None
    if job is not None:
        uid = str(job.task.uid._replace(sample=sample))
        expected = (job.set, job.temperature, uid, job.digest)
    if (record.set, record.temperature, record.uid, record.digest) != expected:
        raise ResumeError(
            f"{path}:{number}: its task is not the one at this place of the evaluation now. The tasks have changed "
            "since; choose another --output, or start over with --resume restart, which keeps the file, or "
            "--overwrite.",
            code="resume/data-changed",
        )
