"""Watch over the forks of all episodes: beyond a share of the turns a warning says what causes them, once."""

from __future__ import annotations

import logging
from collections import Counter

from rlhf_core.contracts import Uid

from .episode.forks import ForkCause, Forks

SHARE = 0.25
"""Share of the turns beyond which forks are warned of."""
FEWEST_TURNS = 16
"""Turns before which nothing is said."""

log = logging.getLogger(__name__)

ADVICE = {
    ForkCause.CALL_IDS: "Have it send each call's id as it came, one id for each call.",
    ForkCause.ANSWER: "Have it send answers back as they came.",
    ForkCause.THOUGHT: "Have it send reasoning_content back, or set --rollout.endpoint.thoughts keep.",
    ForkCause.DROPPED: "If that is not meant, have it keep the history whole.",
    ForkCause.OTHER: "If that is not meant, have it keep what changes from turn to turn out of earlier messages.",
    ForkCause.TOOLS: "Have it send the same tools, in the same order, with each request.",
    ForkCause.SPECIAL: "A policy that has learned to chat writes none. To train on the tokens as they are, set "
    "--rollout.endpoint.thoughts keep.",
    ForkCause.TEMPLATE: "Set --rollout.endpoint.thoughts keep, or choose a template that shows turns as they were.",
}
"""Remedy of each cause."""


class ForkWatch:
    """Turns and forks of the episodes of one executor."""

    def __init__(self) -> None:
        self._num_turns = 0
        self._causes: Counter[ForkCause] = Counter()
        self._examples: dict[ForkCause, str] = {}
        self._has_warned = False

    def add(self, uid: Uid, forks: Forks, num_turns: int) -> None:
        """Count an episode's, and warn if that makes them more than the share."""
        self._num_turns += num_turns
        self._causes.update(forks.causes)
        for cause, example in forks.examples.items():
            self._examples.setdefault(cause, f"episode {uid}, {example}")
        count = self._causes.total()
        if self._has_warned or self._num_turns < FEWEST_TURNS or count <= SHARE * self._num_turns:
            return
        self._has_warned = True
        cause, most = self._causes.most_common(1)[0]
        log.warning(
            "endpoint: %d of %d requests fork from the conversation that they go on with, so they train as rows of "
            "their own, which read again what came before. In %d of them the client %s (first in %s). %s",
            count,
            self._num_turns,
            most,
            cause,
            self._examples[cause],
            ADVICE[cause],
        )
