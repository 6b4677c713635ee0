"""One completion in the making, as the host sees it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlhf_core import RolloutError
from rlhf_core.contracts import Completion, GenerationRequest, SamplingParams
from rlhf_core.media import MediaSpan

from .stop import StopWatcher


class Prompt(NamedTuple):
    """Tokens that a sequence goes on from. Equal prompts are computed once."""

    token_ids: tuple[int, ...]
    media: tuple[MediaSpan, ...] = ()
    """Images, with the places of their tokens."""


@dataclass(slots=True, kw_only=True, eq=False)
class Sequence:
    """A prompt and a seed. Its tokens live in the row of the batch that it occupies."""

    request: GenerationRequest
    call: int
    """Number of the ``generate`` call that it belongs to."""
    sample: int
    """Index of its seed in the request, from 0."""
    limit: int
    """New tokens at most: what the request allows and the model's length leaves."""
    watcher: StopWatcher | None = None
    versions: list[tuple[int, int]] = field(default_factory=list)
    """(index of the first token, version of the weights) whenever the version changed."""

    @property
    def prompt_ids(self) -> tuple[int, ...]:
        return self.request.prompt_ids

    @property
    def prompt(self) -> Prompt:
        return Prompt(self.request.prompt_ids, self.request.media)

    @property
    def sampling(self) -> SamplingParams:
        return self.request.sampling

    def weight_version(self, num_tokens: int) -> NDArray[np.int32]:
        """(A,) version of the weights that sampled each token."""
        versions = np.empty(num_tokens, dtype=np.int32)
        for start, version in self.versions:
            versions[start:] = version
        return versions


@dataclass(frozen=True, slots=True)
class Finished:
    """A sequence that left the batch, and what became of it."""

    sequence: Sequence
    outcome: Completion | RolloutError
