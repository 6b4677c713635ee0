"""Answers of an update: the log-probs of whole ones, what is matched with pairs, and numbers of each for the record."""

from __future__ import annotations

from dataclasses import asdict, fields

import numpy as np
import torch
from numpy.typing import NDArray

from rlhf_core.contracts import (
    ANSWER_WEIGHTS,
    MATCHED,
    PAIR_WEIGHTS,
    AnswerLogprobs,
    MatchedPairs,
    PreferenceInputs,
    PreferenceLoss,
    TrainBatch,
    TrajectoryColumns,
)

from ..seen import Seen, SeenRow
from ..update import Update


def answer_sums(rows: TrajectoryColumns, logprobs: NDArray[np.float32]) -> torch.Tensor:
    """Return the log-prob of each row's whole answer, (B,), given that of each of its tokens, (sum of A,), in nats."""
    return torch.from_numpy(np.add.reduceat(logprobs, rows.action_offsets[:-1]))


def length_weights(rows: TrajectoryColumns, alpha: float) -> NDArray[np.float32]:
    """Return the column ``ANSWER_WEIGHTS`` of pairs by which a long answer is no longer chosen or rejected for its
    length alone.

    ``log p(y) = sum_{t <= l} log p(y_t) + alpha sum_{t > l} log p(y_t)``, where ``l`` is the length of the pair's
    shorter answer, under the policy and under the reference. With alpha 1 it is the log-prob of the whole answer; with
    0 tokens beyond the shorter answer have no effect. Answers of equal length have the weight 1 everywhere.

    Args:
        rows: the answers of all pairs, those of a pair one after the other.
        alpha: weight of the tokens beyond, from 0 to 1.

    Source: Liu et al. 2024 (LD-DPO), arXiv:2409.06411. TRL's ``ld_alpha`` is equal.
    """
    lengths = rows.num_actions  # (B,)
    shared = np.minimum(lengths[0::2], lengths[1::2]).repeat(2)  # (B,) l
    place = np.arange(lengths.sum()) - np.repeat(rows.action_offsets[:-1], lengths)  # (sum of A,)
    return np.where(place < np.repeat(shared, lengths), 1.0, alpha).astype(np.float32)


def pair_weights(
    rows: TrajectoryColumns, logprobs: NDArray[np.float32], sum_pi_squared: NDArray[np.float32]
) -> NDArray[np.float32]:
    """Return the column ``PAIR_WEIGHTS`` by which pairs count that the policy itself might have written.

    ``w(y_w) w(y_l)`` with ``w(y) = exp(1/|y| sum_t (log p(y_t) - log sum_v p_t(v)^2))``: an answer's probability per
    token, divided by the one that a token drawn from the policy has on average. Pairs from another model are so
    weighted as if the policy had been asked. A policy that gives all tokens of the vocabulary the same probability has
    weights of 1; a weight may be above 1.

    Args:
        rows: the answers of all pairs, those of a pair one after the other.
        logprobs: (sum of A,) of their tokens under the policy, in nats.
        sum_pi_squared: (sum of A,) sum over the vocabulary of the squared probabilities at the same places.

    Source: Zhou et al. 2024 (WPO), arXiv:2406.11827, with sampled alignment. TRL's ``use_weighting`` is
    equal.
    """
    aligned = answer_sums(rows, logprobs - np.log(sum_pi_squared)).numpy()  # (B,)
    means = aligned / rows.num_actions
    weights = np.exp(means[0::2] + means[1::2]).astype(np.float32)  # (P,)
    return np.repeat(weights.repeat(2), rows.num_actions)


def weighted_losses(
    batch: TrainBatch, losses: torch.Tensor, rows: NDArray[np.int64]
) -> torch.Tensor:
    """Return the losses (P,) of pairs with their ``PAIR_WEIGHTS``, if the batch has some.

    Args:
        rows: (P,) a row of each pair.
    """
    column = batch.columns.get(PAIR_WEIGHTS)
    if column is None:
        return losses
    return losses * torch.from_numpy(column[batch.trajectories.action_offsets[rows]])


def answers_of(
    batch: TrainBatch, logprobs: NDArray[np.float32], rows: NDArray[np.int64]
) -> AnswerLogprobs:
    """Return the log-probs of whole answers.

    Args:
        batch: rows of which some are these answers, with the reference's log-probs if the loss looks at them, and with
            ``ANSWER_WEIGHTS`` if they are weighted.
        logprobs: (sum of A,) of the tokens of all rows under the policy, in nats.
        rows: (B,), the rows of the answers.
    """
    every, reference = batch.trajectories, batch.columns.get("ref_logprobs")
    weights = batch.columns.get(ANSWER_WEIGHTS, np.float32(1.0))
    return AnswerLogprobs(
        policy=answer_sums(every, weights * logprobs)[rows],
        reference=None if reference is None else answer_sums(every, weights * reference)[rows],
        num_tokens=torch.from_numpy(every.num_actions[rows]),
    )


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


def seen_pairs(loss: PreferenceLoss, batch: TrainBatch, logprobs: NDArray[np.float32]) -> Seen:
    """Return loss, margin and implicit rewards of pairs: neighboring rows, the chosen one first.

    Args:
        logprobs: (sum of A,) of the answers' tokens under the policy, before the update.
    """
    every = np.arange(len(batch.trajectories))
    result = loss(
        PreferenceInputs(
            chosen=answers_of(batch, logprobs, every[0::2]),
            rejected=answers_of(batch, logprobs, every[1::2]),
            matched=_matched(batch),
        )
    )
    losses = weighted_losses(batch, result.loss, every[0::2])  # (P,)
    margins = (result.chosen_rewards - result.rejected_rewards).tolist()  # P
    rewards = torch.stack([result.chosen_rewards, result.rejected_rewards], dim=1).tolist()  # P x 2
    rows = []
    for value, margin, both in zip(losses.tolist(), margins, rewards, strict=True):
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
            chosen=answers_of(batch, logprobs, good),
            rejected=answers_of(batch, logprobs, bad),
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
