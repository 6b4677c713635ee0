"""Trajectories: training sequences as they were sampled, with their names, turns and rewards.

Axes: ``T`` tokens of a sequence (prompt, actions, environment text), ``A`` action tokens (those that the policy wrote).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from ..lazy import NDArray, np
from ..media.spans import MediaSpan, seen_together


class Uid(NamedTuple):
    """Name of a training sequence; sorting by it gives the order of training."""

    epoch: int
    """Pass over the data, or with a prompt sampler the number of the prompt's draw; evaluation uses -1."""
    prompt: int
    """Position of the row in the data set."""
    sample: int = 0
    """Index of the episode in its group, from 0."""
    segment: int = 0
    """Index of the training sequence in its episode, from 0; over 0 after context compaction, or for sub-agents."""

    def __str__(self) -> str:
        return ".".join(map(str, self))

    @classmethod
    def parse(cls, text: str) -> Uid:
        """Return the uid that ``str`` wrote as ``text``."""
        return cls(*map(int, text.split(".")))


class Stop(StrEnum):
    """Reason for the end of a turn."""

    EOS = "eos"
    """The policy wrote an end-of-sequence token."""
    STRING = "string"
    """One of the stop strings appeared."""
    LENGTH = "length"
    """The token limit was reached: the turn is truncated."""
    ONE_TOKEN = "one_token"
    """The turn is its one token, where the run's answers have no more (``rollout.max_new_tokens`` is 1): it is whole.
    An engine says ``LENGTH`` of it."""
    ABORTED = "aborted"
    """The engine gave the request up (shutdown, weight update without resume)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One answer of the policy: a span of tokens with at least one action, and its reward."""

    start: int
    """Index in ``token_ids`` of the answer's first token."""
    end: int
    """Index after the answer's last token. All tokens between are actions, but those that a grammar decided."""
    reward: float = 0.0
    """Reward that the environment gave for this turn, placed on the turn's last action token."""
    stop: Stop = Stop.EOS
    """Reason for its end."""
    place: int = 0
    """Place in the order in which the policy answered in its episode, across the episode's segments. Turns of equal
    places follow each other as their segments and they themselves do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """One training sequence, exactly as it was sampled (token in, token out).

    Raises:
        ValueError: the arrays' lengths disagree, a turn lies outside of the sequence, an action is in no turn or a turn
            has no action, a step reward stands on no action, an image's tokens are none, or the routes are
            not of its tokens.
    """

    uid: Uid
    """Name: epoch, prompt, sample and segment."""
    token_ids: NDArray[np.int32]
    """(T,)"""
    action_mask: NDArray[np.bool_]
    """(T,) True at the tokens that the policy wrote. The first token is never an action."""
    rollout_logprobs: NDArray[np.float32]
    """(A,) log-probability of each action under the distribution that it was sampled from."""
    weight_version: NDArray[np.int32]
    """(A,) version of the weights that sampled each action."""
    turns: tuple[Turn, ...]
    """Turns in order; together they cover the action tokens, and each has some."""
    reward: float | None = None
    """Reward of the whole episode; None: there is none. What an executor gives is kept: the rewards add theirs. Turn
    rewards come on top. Of several segments each has the episode's reward, and in it the turn rewards of the others."""
    rewards: Mapping[str, float] = field(default_factory=dict)
    """The rewards whose weighted sum is ``reward``, by name, unweighted."""
    step_rewards: tuple[tuple[int, float], ...] = ()
    """Parts of ``reward`` on single action tokens: the token's index among the actions, from 0, and the part. What they
    leave of ``reward`` stands on the last action token."""
    is_final: bool = True
    """True for the segment in which the episode ended: the one with its last request. Rewards score this one; where
    several are final, the last of them."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Numbers that the executor, environment or rewards report; averaged in the logs."""
    media: tuple[MediaSpan, ...] = ()
    """Images of the sequence, each with the place of its tokens, in order."""
    routes: NDArray[np.signedinteger] | None = None
    """(T, L, k) experts that the engine sent each token to, by layer with experts; -1: not known, as of the last token.
    None: of no token."""

    def __post_init__(self) -> None:
        num_tokens, num_actions = len(self.token_ids), int(self.action_mask.sum())
        if len(self.action_mask) != num_tokens:
            raise ValueError(
                f"{self.uid}: {num_tokens} tokens but a mask of {len(self.action_mask)}"
            )
        if num_tokens and self.action_mask[0]:
            raise ValueError(
                f"{self.uid}: the first token is an action; nothing precedes it to predict it from"
            )
        for name in ("rollout_logprobs", "weight_version"):
            if len(getattr(self, name)) != num_actions:
                raise ValueError(
                    f"{self.uid}: {num_actions} action tokens but {len(getattr(self, name))} {name}"
                )
        covered = np.zeros(num_tokens, dtype=bool)
        for turn in self.turns:
            if not 0 < turn.start < turn.end <= num_tokens or covered[turn.start : turn.end].any():
                raise ValueError(
                    f"{self.uid}: turn [{turn.start}, {turn.end}) is empty, overlaps another, or lies outside "
                    f"of {num_tokens} tokens"
                )
            covered[turn.start : turn.end] = True
        if (self.action_mask & ~covered).any():
            raise ValueError(f"{self.uid}: the turns do not cover all action tokens")
        if not all(self.turn_actions):
            raise ValueError(f"{self.uid}: a turn has no action token; expected at least one")
        if self.media:
            self._check_media()
        if self.routes is not None and (self.routes.ndim != 3 or len(self.routes) != num_tokens):
            raise ValueError(
                f"{self.uid}: routes of shape {self.routes.shape}; expected ({num_tokens}, layers, experts of a token)"
            )
        for action, _ in self.step_rewards:
            if not 0 <= action < num_actions:
                raise ValueError(
                    f"{self.uid}: a step reward at action {action}; there are {num_actions} actions, from 0"
                )

    def _check_media(self) -> None:
        behind = 0
        for span, _ in seen_together(self.media):
            if not behind <= span.start < span.end <= len(self.token_ids):
                raise ValueError(
                    f"{self.uid}: the image at tokens [{span.start}, {span.end}) is empty, overlaps the one before, or "
                    f"lies outside of {len(self.token_ids)} tokens"
                )
            if self.action_mask[span.start : span.end].any():
                raise ValueError(
                    f"{self.uid}: the policy wrote tokens of the image at [{span.start}, {span.end})"
                )
            behind = span.end

    @property
    def turn_actions(self) -> list[int]:
        """(U,) action tokens of each turn."""
        return [int(self.action_mask[turn.start : turn.end].sum()) for turn in self.turns]

    @property
    def truncated(self) -> bool:
        """True when the last turn hit a token limit."""
        return bool(self.turns) and self.turns[-1].stop == Stop.LENGTH

    @property
    def total_reward(self) -> float:
        """Reward of the episode (0 without one) plus the rewards of its turns."""
        return (self.reward or 0.0) + sum(turn.reward for turn in self.turns)
