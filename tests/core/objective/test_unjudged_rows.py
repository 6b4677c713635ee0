"""Rows whose rewards do not count: the policy loss is that of the others, and what needs no advantages is of all."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from rlhf_core.contracts import Normalizers
from rlhf_core.contracts.backend import JUDGED

ALL = range(3)
ROW_OF_ACTION = np.repeat(ALL, (2, 1, 3))


def judged(batch, rows):
    column = np.isin(ROW_OF_ACTION, rows).astype(np.float32)
    return replace(batch, columns={**batch.columns, JUDGED: column})


def without_rewards(batch):
    return replace(batch, columns={**batch.columns, "advantages": np.zeros(6, np.float32)})


def gradients(objective, batch, rows, plan, leaves, part):
    logprobs, entropies = leaves()
    loss, metrics = objective.rollouts(*part(batch, rows, logprobs, entropies), plan)
    loss.backward()
    found = (logprobs.grad, torch.zeros(6) if entropies.grad is None else entropies.grad)
    return torch.stack([each.double() for each in found]), metrics


@pytest.mark.parametrize(
    "aggregation", ["token-mean", "seq-mean-token-mean", "seq-mean-token-sum-norm"]
)
@pytest.mark.parametrize("cut", [[[0, 1, 2]], [[0], [1], [2]]], ids=["whole", "a_row_at_a_time"])
def test_the_gradient_is_the_others_policy_loss_and_everyones_kl_entropy_and_free_terms(
    built, batch, plan, leaves, part, refs, term, aggregation, cut
):
    """Row 1 was dropped for its rewards. Totals of rows 0 and 2: 5 actions, 2 sequences."""
    rest = {"kl_estimator": refs.k3, "entropy_bonus": True, "terms": (term(loss=refs.free),)}
    objective = built(aggregation=aggregation, **rest)
    kept = Normalizers(num_actions=5, num_sequences=2, max_actions=4)
    both = replace(plan, normalizers=kept, sampled_normalizers=plan.normalizers)

    total = sum(
        gradients(objective, judged(batch, [0, 2]), rows, both, leaves, part)[0] for rows in cut
    )

    alone = replace(plan, normalizers=kept)
    policy, _ = gradients(built(aggregation=aggregation), batch, [0, 2], alone, leaves, part)
    others, _ = gradients(objective, without_rewards(batch), ALL, plan, leaves, part)
    # Six float64 terms of magnitude below 10 each.
    torch.testing.assert_close(total, policy + others, rtol=0, atol=1e-12)
    assert others[:, 2].abs().min() > 0  # the dropped row's own action
    assert policy[0, 2] == 0


def test_a_step_without_any_row_whose_reward_counts_has_the_rest_of_the_loss(
    built, batch, plan, leaves, part, refs
):
    objective = built(kl_estimator=refs.k2)
    none = Normalizers(num_actions=0, num_sequences=0, max_actions=4)
    both = replace(plan, normalizers=none, sampled_normalizers=plan.normalizers)

    actual, metrics = gradients(objective, judged(batch, []), ALL, both, leaves, part)

    expected, _ = gradients(objective, without_rewards(batch), ALL, plan, leaves, part)
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-12)
    assert float(metrics["loss/policy"].total) == 0.0
    assert "clip/fraction" not in metrics


def test_a_term_that_needs_advantages_is_of_the_rows_whose_rewards_count(
    built, batch, plan, leaves, part, term
):
    objective = built(terms=(term(),))
    kept = Normalizers(num_actions=5, num_sequences=2, max_actions=4)
    both = replace(plan, normalizers=kept, sampled_normalizers=plan.normalizers)

    actual, _ = gradients(objective, judged(batch, [0, 2]), ALL, both, leaves, part)

    alone = replace(plan, normalizers=kept)
    expected, _ = gradients(objective, batch, [0, 2], alone, leaves, part)
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-12)


def test_a_correction_is_of_the_rows_whose_rewards_count_and_keeps_its_metrics(
    built, batch, plan, leaves, part, refs
):
    """Its metrics are of all rows, and no columns of them."""
    objective = built(correction=refs.correction)
    kept = Normalizers(num_actions=5, num_sequences=2, max_actions=4)
    both = replace(plan, normalizers=kept, sampled_normalizers=plan.normalizers)

    actual, metrics = gradients(objective, judged(batch, [0, 2]), ALL, both, leaves, part)

    alone = replace(plan, normalizers=kept)
    expected, _ = gradients(objective, batch, [0, 2], alone, leaves, part)
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-12)
    assert float(metrics["correction/mean"].total) == 2.0
