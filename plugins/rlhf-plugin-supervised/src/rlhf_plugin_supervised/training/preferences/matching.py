"""Pairs of an update that are matched by rank, as columns of its batch."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np
import torch
from numpy.typing import NDArray

from rlhf_core.contracts import MATCHED, AnswerLogprobs, MatchedPairs, TrajectoryColumns

from .sums import answer_sums


def matched_columns(
    rows: TrajectoryColumns, logprobs: NDArray[np.float32], reference: NDArray[np.float32]
) -> dict[str, NDArray[np.float32]]:
    """Return the columns, (sum of A,) each, of what is matched with each pair of an update.

    Args:
        rows: the answers of all pairs, the chosen one of each first.
        logprobs: log-prob under the policy of each of their tokens, (sum of A,), in nats.
        reference: the same under the reference.
    """
    policy_sums, reference_sums = answer_sums(rows, logprobs), answer_sums(rows, reference)  # (B,)
    num_tokens = torch.from_numpy(rows.num_actions)

    def answers(first: int) -> AnswerLogprobs:
        every = slice(first, None, 2)
        return AnswerLogprobs(
            policy=policy_sums[every],
            reference=reference_sums[every],
            num_tokens=num_tokens[every],
        )

    matched = MatchedPairs.of(answers(0), answers(1))
    return {
        MATCHED + name: np.repeat(column.repeat_interleave(2).numpy(), rows.num_actions)
        for name, column in asdict(matched).items()
    }
