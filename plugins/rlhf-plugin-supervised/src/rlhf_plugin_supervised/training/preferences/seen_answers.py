"""Loss, margin and implicit rewards of the answers of an update, one by one, for the record of the rows."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import torch
from numpy.typing import NDArray

from rlhf_core.contracts import (
    MATCHED,
    AnswerLogprobs,
    MatchedPairs,
    PreferenceInputs,
    PreferenceLoss,
    TrainBatch,
)

from ..seen import Seen, SeenRow
from ..update import Update
from .sums import answer_sums


def seen_pairs(loss: PreferenceLoss, batch: TrainBatch, logprobs: NDArray[np.float32]) -> Seen:
    """Return loss, margin and implicit rewards of pairs: neighboring rows, the chosen one first.

    Args:
        logprobs: (sum of A,) of the answers' tokens under the policy, before the update.
    """
    every = np.arange(len(batch.trajectories))
    result = loss(
        PreferenceInputs(
            chosen=_answers(batch, logprobs, every[0::2]),
            rejected=_answers(batch, logprobs, every[1::2]),
            matched=_matched(batch),
        )
    )
    margins = (result.chosen_rewards - result.rejected_rewards).tolist()  # P
    rewards = torch.stack([result.chosen_rewards, result.rejected_rewards], dim=1).tolist()  # P x 2
    rows = []
    for value, margin, both in zip(result.loss.tolist(), margins, rewards, strict=True):
        numbers = {"loss": value, "margin": margin, "right": float(margin > 0)}
        rows += [
            SeenRow(score=score, numbers=numbers, chosen=chosen)
            for score, chosen in zip(both, (True, False), strict=True)
        ]
    return Seen(kind="pair", rows=rows, columns=_columns(batch, logprobs))


def seen_judged(loss: PreferenceLoss, update: Update, logprobs: NDArray[np.float32]) -> Seen:
    """Return loss and implicit reward of answers that were judged one by one. One counts as told right if the reward of
    a good answer is above 0, or that of another is not."""
    batch = update.batch
    is_good = batch.trajectories.reward > 0.5  # (B,)
    good, bad = np.flatnonzero(is_good), np.flatnonzero(~is_good)
    kl = update.mismatched_kl
    result = loss(
        PreferenceInputs(
            chosen=_answers(batch, logprobs, good),
            rejected=_answers(batch, logprobs, bad),
            mismatched_kl=None if kl is None else torch.tensor(kl, dtype=torch.float32),
        )
    )
    back = np.argsort(np.concatenate([good, bad]))
    losses = result.loss[back].tolist()  # B
    rewards = torch.cat([result.chosen_rewards, result.rejected_rewards])[back].tolist()  # B
    rows = [
        SeenRow(
            score=reward,
            numbers={"loss": value, "right": float((reward > 0) == chosen)},
            chosen=chosen,
        )
        for value, reward, chosen in zip(losses, rewards, is_good.tolist(), strict=True)
    ]
    return Seen(kind="judged", rows=rows, columns=_columns(batch, logprobs))


def _answers(
    batch: TrainBatch, logprobs: NDArray[np.float32], rows: NDArray[np.int64]
) -> AnswerLogprobs:
    every, reference = batch.trajectories, batch.columns.get("ref_logprobs")
    return AnswerLogprobs(
        policy=answer_sums(every, logprobs)[rows],
        reference=None if reference is None else answer_sums(every, reference)[rows],
        num_tokens=torch.from_numpy(every.num_actions[rows]),
    )


def _matched(batch: TrainBatch) -> MatchedPairs | None:
    """Return what is matched with each pair, whose rows hold it at each of their actions; None: the loss needs none."""
    names = [field.name for field in fields(MatchedPairs)]
    if MATCHED + names[0] not in batch.columns:
        return None
    first = batch.trajectories.action_offsets[:-1][0::2]  # (P,)
    return MatchedPairs(
        **{name: torch.from_numpy(batch.columns[MATCHED + name][first]) for name in names}
    )


def _columns(batch: TrainBatch, logprobs: NDArray[np.float32]) -> dict[str, NDArray[np.float32]]:
    reference = batch.columns.get("ref_logprobs")
    found = {"old_logprobs": logprobs}
    return found if reference is None else {**found, "ref_logprobs": reference}
