"""From scored episodes to what prompt samplers learn of their prompts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rlhf_core.batch.trajectory_columns import TrajectoryColumns
from rlhf_core.contracts.data.sampler import PromptResult


def prompt_results(groups: Sequence[TrajectoryColumns], step: int) -> list[PromptResult]:
    """Return the result of each group, in order of the prompts. An episode of several sequences counts once, with
    their mean.

    Args:
        groups: episodes of one prompt each, with the rewards as they were given.
    """
    return sorted(
        (_result(group, step) for group in groups), key=lambda result: (result.epoch, result.index)
    )


def _result(group: TrajectoryColumns, step: int) -> PromptResult:
    epoch, prompt, _, _ = group.uid[0].tolist()
    episode = group.episode
    totals = np.bincount(episode, weights=group.total_reward) / np.bincount(episode)
    return PromptResult(index=prompt, epoch=epoch, step=step, rewards=tuple(totals.tolist()))
