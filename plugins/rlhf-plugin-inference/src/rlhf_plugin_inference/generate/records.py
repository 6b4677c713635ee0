"""The file of completions: one JSON line for each prompt, in the order of the prompts.

A killed process leaves whole lines and perhaps half of one, which is cut off when the file is opened again.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from rlhf_core import ResumeError
from rlhf_core.contracts import Message

from ..worklist.image_files import files_in
from ..worklist.record_lines import read_records


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredAnswer:
    """One completion of a prompt."""

    text: str
    """The completion, without special tokens."""
    tokens: int
    """Number of its tokens, the end-of-sequence token included."""
    stop: str
    """Reason for its end: ``eos``, ``string`` or ``length``."""
    logprob: float
    """Sum of its tokens' log-probs, in nats, under the distribution that they were drawn from."""
    seed: int
    reward: float | None = None
    """Weighted sum of the rewards; None without rewards, and where one failed with ``on_error = drop``."""
    rewards: Mapping[str, float] = field(default_factory=dict)
    """Each reward's own score, by name."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Numbers that rewards report, as ``name/metric``."""


class PromptIdentity(NamedTuple):
    """Properties by which a prompt is told from others."""

    number: int
    """Index of its row over all sets."""
    text: str
    images: tuple[str, ...] = ()
    """Files of its images."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnsweredPrompt:
    """One line of the file."""

    index: int
    """Index of the prompt's row over all sets."""
    dataset: str
    """Name of the row's set."""
    prompt: str
    """The prompt as text; a chat is rendered by the chat template."""
    messages: tuple[Message, ...] | None
    """The prompt as chat messages; None for plain text. An image is a path from the folder of this file on."""
    prompt_tokens: int
    completions: tuple[ScoredAnswer, ...]
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Variables by which the chat template rendered the messages, of the run and of the row."""

    @property
    def identity(self) -> PromptIdentity:
        return PromptIdentity(self.index, self.prompt, tuple(files_in(self.messages)))

    def to_line(self) -> str:
        values = asdict(self)
        if not self.chat_template_kwargs:
            del values["chat_template_kwargs"]
        return json.dumps(values, ensure_ascii=True)


def check_same_prompts(path: Path, expected: Iterable[PromptIdentity]) -> int:
    """Return the number of lines of a file, which may be missing, each of which belongs to the prompt at its place.

    Args:
        expected: each prompt in order; made as far as the file goes.

    Raises:
        ResumeError: a line belongs to another prompt, or there are more lines than prompts.
    """
    count = 0
    prompts = iter(expected)
    for count, line in enumerate(read_records(path, AnsweredPrompt), start=1):
        if line.identity != next(prompts, None):
            raise ResumeError(
                f"{path}:{count}: its prompt is not the one at this place of --data now. The data have changed since; "
                "start over with --resume restart, which keeps the file, or choose another --output.",
                code="resume/data-changed",
            )
    return count
