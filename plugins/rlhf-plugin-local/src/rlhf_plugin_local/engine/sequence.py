"""One completion in the making, as the host sees it."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlhf_core import RequestError, RolloutError
from rlhf_core.contracts import Completion, GenerationRequest, SamplingParams, Stop
from rlhf_core.media import MediaSpan

from .next_token.guides import Guide
from .next_token.sampling import signed_seed
from .stop import StopWatcher

INTEGERS = ("token", "position", "index", "seed", "limit", "min_new", "top_k", "shift")
FLOATS = ("temperature", "top_p", "min_p")
"""Numbers of a row of the batch, in their order."""


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
    outcome: asyncio.Future[Completion]
    """Completion, or the error in its place, for the call that waits."""
    watcher: StopWatcher | None = None
    guide: Guide | None = None
    """Keeps the answer within the request's grammar."""
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

    def integers(self, shift: int) -> tuple[int, ...]:
        """Return ``INTEGERS`` of a row before its first token, with which position and index go one further.

        Args:
            shift: what is added to a position for rotary embeddings.
        """
        seed = signed_seed(self.request.seeds[self.sample])
        params = self.sampling
        state = (0, len(self.prompt_ids) - 1, 0)
        return (*state, seed, self.limit, fewest_tokens(params), params.top_k, shift)

    @property
    def floats(self) -> tuple[float, ...]:
        """``FLOATS`` of a row."""
        return (self.sampling.temperature, self.sampling.top_p, self.sampling.min_p)

    def weight_version(self, num_tokens: int) -> NDArray[np.int32]:
        """(A,) version of the weights that sampled each token."""
        versions = np.empty(num_tokens, dtype=np.int32)
        for start, version in self.versions:
            versions[start:] = version
        return versions


def fewest_tokens(params: SamplingParams) -> int:
    """Return the number of first tokens among which nothing ends a turn."""
    # Where a grammar ends an answer, nothing else is allowed.
    return 0 if params.grammar is not None else params.min_new_tokens


Finished = tuple[Sequence, Completion | RolloutError]
"""A sequence that left the batch, and what became of it."""


def outcome_of(
    sequence: Sequence,
    tokens: NDArray[np.int32],
    logprobs: NDArray[np.float32],
    eos_token_ids: Collection[int],
    routes: NDArray[np.signedinteger] | None = None,
) -> Completion | RolloutError:
    """Return the completion of these tokens (A,), or the error of one whose last log-prob (A,) is not a number, or
    whose grammar leads where the model has no token to go on with."""
    guide = sequence.guide
    if guide is not None and guide.is_stuck:
        return _stuck(sequence, len(tokens))
    if not np.isfinite(logprobs[-1]):
        return _not_finite(sequence, len(tokens))
    if int(tokens[-1]) in eos_token_ids:
        stop = Stop.EOS
    elif sequence.watcher is not None and sequence.watcher.found:
        stop = Stop.STRING
    else:
        stop = Stop.LENGTH
    return Completion(
        token_ids=tokens,
        logprobs=logprobs,
        weight_version=sequence.weight_version(len(tokens)),
        stop=stop,
        allowed_mass=None if guide is None else np.array(guide.masses, dtype=np.float32),
        expert_routes=routes,
    )


def _stuck(sequence: Sequence, count: int) -> RequestError:
    return RequestError(
        f"request {sequence.request.uid}: no token of the model can be token {count} of an answer of this form; its "
        "vocabulary lacks what the form asks for",
        code="engine/form-without-tokens",
    )


def _not_finite(sequence: Sequence, count: int) -> RolloutError:
    return RolloutError(
        f"request {sequence.request.uid}: the log-probability of token {count} is not a finite number, so the model's "
        "logits are not either. Check the weights: a step with too large a learning rate may have destroyed them.",
        code="engine/not-finite",
    )
