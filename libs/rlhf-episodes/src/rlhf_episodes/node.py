"""Nodes of an episode's graph: one request to the policy each, with the answer that it sampled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from rlhf_core.batch.trajectory import Stop
from rlhf_core.contracts.engine import Completion
from rlhf_core.media.spans import MediaSpan

MAX_MASKED = 1e-3
"""Probability that a grammar may take away at a token that still is an action: the ratio of the trainer's probability
to the sampler's is off by as much there."""


@dataclass(slots=True, kw_only=True, eq=False)
class RequestNode:
    """One request of an episode. The graph makes it and keeps it up to date; others read it."""

    index: int
    """Place among the episode's requests, in the order in which they were added, from 0."""
    agent: str
    """Role or lineage of the agent that asked; empty: the main one."""
    parent: RequestNode | None
    """The last request of whose answer the input holds at least a token, where it is shared; None: it holds none."""
    shared: int
    """Number of the input's first tokens that stand on an earlier path."""
    forked_at: int | None
    """Index of the first token of the input that differs from the earlier path; None if none does: the input goes on
    where a path ends, repeats a part of one, or shares nothing."""
    start: int
    """Number of tokens of the input: the index in the path of the answer's first token."""
    completion: Completion
    """The answer, with its log-probs and versions."""
    stop: Stop
    media: tuple[MediaSpan, ...] = ()
    """Images of the input."""
    reward: float = 0.0
    """Reward of this turn."""
    is_discarded: bool = False
    read_path: Callable[[int], NDArray[np.int32]] = field(repr=False)
    """Returns the path's first tokens; ``path_ids`` is how it is used."""

    @property
    def learned(self) -> NDArray[np.bool_]:
        """(A,) tokens of the answer that are actions: all, or those at which a grammar changed next to nothing.

        Below a grammar a token is drawn from p(a) / Z, where Z is the mass of what was allowed. The trainer has
        log p, so log-probs and their gradients are those of the draw where log Z is 0; where the grammar left one
        token, there was nothing to decide. Which tokens are left out depends on what was read alone, never on what was
        drawn, so the policy gradient over the others is not biased.
        """
        mass = self.completion.allowed_mass
        if mass is None:
            return np.ones(len(self.completion.token_ids), dtype=bool)
        return mass >= 1.0 - MAX_MASKED

    @property
    def end(self) -> int:
        """Index in the path after the answer's last token."""
        return self.start + len(self.completion.token_ids)

    @property
    def input_ids(self) -> NDArray[np.int32]:
        """(T,) all tokens that the engine read, as a copy."""
        return self.read_path(self.start)

    @property
    def path_ids(self) -> NDArray[np.int32]:
        """(T,) all tokens from the path's first one to the answer's last, as a copy."""
        return self.read_path(self.end)
