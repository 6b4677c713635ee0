"""The recording of an episode. Tokens are only appended, so that training uses the tokens that were sampled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from rlhf_core import RolloutError
from rlhf_core.contracts import Completion, SamplingParams, Stop, Trajectory, Turn, Uid


def limited(sampling: SamplingParams, room: int) -> SamplingParams:
    """Return the sampling parameters with at most ``room`` new tokens, where ``room`` is at least 1."""
    most = min(sampling.max_new_tokens, room)
    return replace(sampling, max_new_tokens=most, min_new_tokens=min(sampling.min_new_tokens, most))


class Recording:
    """One episode: a prompt, then turns of the policy and texts of the environment in any order."""

    def __init__(self, uid: Uid, prompt_ids: Sequence[int]) -> None:
        self.uid = uid
        self.token_ids: list[int] = list(prompt_ids)
        self.turns: list[Turn] = []
        self._parts: list[Completion] = []

    def __len__(self) -> int:
        """Return the number of tokens so far."""
        return len(self.token_ids)

    def add_turn(self, completion: Completion) -> None:
        """Append a turn of the policy.

        Raises:
            RolloutError: the engine returned no tokens, or arrays of different lengths.
        """
        count = len(completion.token_ids)
        if (
            not count
            or len(completion.logprobs) != count
            or len(completion.weight_version) != count
        ):
            raise RolloutError(
                f"{self.uid}, turn {len(self.turns)}: the engine returned {count} tokens, {len(completion.logprobs)} "
                f"log-probs and {len(completion.weight_version)} versions (stop: {completion.stop}); expected the same "
                "number of each, and at least one"
            )
        start = len(self)
        self.token_ids += completion.token_ids.tolist()
        self.turns.append(Turn(start=start, end=len(self), stop=completion.stop))
        self._parts.append(completion)

    def reward_turn(self, reward: float) -> None:
        """Set the reward of the last turn."""
        self.turns[-1] = replace(self.turns[-1], reward=reward)

    def mark_truncated(self) -> None:
        """Note that a token limit cut the episode, whatever ended its last turn."""
        self.turns[-1] = replace(self.turns[-1], stop=Stop.LENGTH)

    def add_text(self, token_ids: Sequence[int]) -> None:
        """Append a text of the environment, as tokens."""
        self.token_ids += token_ids

    def trajectory(self, metrics: Mapping[str, float] | None = None) -> Trajectory:
        """Return the episode as a trajectory.

        Args:
            metrics: numbers to record for the episode, by name.
        """
        mask = np.zeros(len(self), dtype=bool)
        for turn in self.turns:
            mask[turn.start : turn.end] = True
        return Trajectory(
            uid=self.uid,
            token_ids=np.array(self.token_ids, dtype=np.int32),
            action_mask=mask,
            rollout_logprobs=np.concatenate([part.logprobs for part in self._parts]),
            weight_version=np.concatenate([part.weight_version for part in self._parts]),
            turns=tuple(self.turns),
            metrics=dict(metrics or {}),
        )
