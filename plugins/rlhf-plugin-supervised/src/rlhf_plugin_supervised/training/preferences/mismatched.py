"""Answers beside the prompts of others, over which KTO estimates how far the policy is from the reference."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from rlhf_core import DataError
from rlhf_core.contracts import Trajectory, TrajectoryColumns, Turn, Uid
from rlhf_core.media import MediaSpan

SHIFTS = 256
"""Number of shifts that are tried for one under which no prompt meets an answer of its own."""


def mismatched(rows: TrajectoryColumns, max_length: int) -> TrajectoryColumns:
    """Return the prompt of each row, with its images and the answer of another row, in the order of the prompts.

    Row i has the answer of row ``i + s``, modulo their number, with the smallest ``s`` under which no row has an answer
    to its own prompt; of the first 256 the one with the fewest such rows. So each answer is there once, and the
    partners are the same in every epoch.

    Args:
        rows: prompts, each with one answer at its end.
        max_length: tokens of a sequence; an answer that is too long beside its new prompt loses its end.

    Raises:
        DataError: all rows have the same prompt.

    Source: Ethayarajh et al. 2024, arXiv:2402.01306, section 4. TRL shifts by 1, also between equal prompts.
    """
    tokens, mask = rows.token_ids, rows.action_mask
    prompts, answers, names = [], [], []
    seen = rows.tokens_with_images()
    for row, (first, end) in enumerate(pairwise(rows.token_offsets.tolist())):
        actions = first + np.flatnonzero(mask[first:end])
        prompts.append(tokens[first : actions[0]])
        answers.append(tokens[actions[0] : actions[-1] + 1])
        names.append(seen[row][: actions[0] - first].tobytes())
    shift = _shift(names)
    partners = np.roll(np.arange(len(rows)), -shift)
    return TrajectoryColumns.from_trajectories(
        [
            _joined(
                index, prompt, answers[partner][: max_length - len(prompt)], rows.media_of(index)
            )
            for index, (prompt, partner) in enumerate(zip(prompts, partners, strict=True))
        ]
    )


def _shift(prompts: list[bytes]) -> int:
    """Return the shift under which the fewest prompts meet themselves."""
    names = np.unique(np.array(prompts, dtype=object), return_inverse=True)[1]
    counts = [
        int((names == np.roll(names, -shift)).sum())
        for shift in range(1, min(len(names), SHIFTS + 1))
    ]
    if not counts or min(counts) == len(names):
        raise DataError(
            "expected answers to at least two different prompts: the mean KL to the reference is estimated over "
            f"answers beside the prompts of others; all {len(names)} rows have the same prompt",
            code="data/too-few-prompts",
        )
    return counts.index(min(counts)) + 1


def _joined(
    index: int,
    prompt: NDArray[np.int32],
    answer: NDArray[np.int32],
    media: tuple[MediaSpan, ...],
) -> Trajectory:
    start, end = len(prompt), len(prompt) + len(answer)
    return Trajectory(
        uid=Uid(0, index),
        token_ids=np.concatenate([prompt, answer]),
        action_mask=np.arange(end) >= start,
        rollout_logprobs=np.zeros(len(answer), dtype=np.float32),
        weight_version=np.zeros(len(answer), dtype=np.int32),
        turns=(Turn(start=start, end=end),),
        media=media,
    )
