"""Actions that the policy loss leaves out: 0 in its sum, in its normalizers all the same, and in every other term."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from rlhf_core import PluginError
from rlhf_core.contracts import Normalizers
from rlhf_core.contracts.backend import JUDGED, TRAINED
from rlhf_testing.errors import has_code

ALL = range(3)
KEPT = [1.0, 0.0, 0.0, 1.0, 0.0, 1.0]
"""Of the rows of 2, 1 and 3 actions; row 1 has none that is trained on."""
AGGREGATIONS = ("token-mean", "seq-mean-token-mean", "seq-mean-token-sum-norm")


def marked(batch, trained, **columns):
    column = np.array(trained, dtype=np.float32)
    return replace(batch, columns={**batch.columns, TRAINED: column, **columns})


def gradients(objective, batch, rows, plan, leaves, part):
    logprobs, entropies = leaves()
    loss, metrics = objective.rollouts(*part(batch, rows, logprobs, entropies), plan)
    loss.backward()
    found = (logprobs.grad, torch.zeros(6) if entropies.grad is None else entropies.grad)
    return torch.stack([each.double() for each in found]), loss.detach(), metrics


def test_a_token_that_is_left_out_adds_nothing_and_still_divides(built, batch, plan, leaves, part):
    """Advantages 1, ratios 1: each of the three tokens adds -1, and six divide."""
    batch = marked(batch, KEPT, advantages=np.ones(6, dtype=np.float32))
    plan = replace(plan, on_policy=True)

    gradient, loss, metrics = gradients(built(), batch, ALL, plan, leaves, part)

    assert loss.item() == pytest.approx(-3 / 6)
    assert gradient[0].tolist() == pytest.approx([-each / 6 for each in KEPT])
    assert metrics["policy/trained_tokens"].value() == pytest.approx(3 / 6)
    assert metrics["loss/policy"].value() == pytest.approx(-3 / 6)


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("cut", [[[0, 1, 2]], [[0], [1], [2]]], ids=["whole", "a_row_at_a_time"])
def test_it_is_the_loss_whose_advantages_are_0_there(
    built, batch, plan, leaves, part, refs, term, aggregation, cut
):
    """The plain loss is ``-A * ratio``. KL, entropy and further terms have all actions."""
    rest = {"kl_estimator": refs.k3, "entropy_bonus": True, "terms": (term(),)}
    objective = built(aggregation=aggregation, **rest)
    gone = batch.columns["advantages"] * np.array(KEPT, dtype=np.float32)

    actual = sum(
        gradients(objective, marked(batch, KEPT), rows, plan, leaves, part)[0] for rows in cut
    )

    without = replace(batch, columns={**batch.columns, "advantages": gone})
    expected, *_ = gradients(objective, without, ALL, plan, leaves, part)
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-12)


def test_where_all_are_trained_on_every_bit_is_that_of_a_batch_without_the_column(
    built, batch, plan, leaves, part, refs
):
    objective = built(correction=refs.correction, kl_estimator=refs.k2)

    actual, loss, _ = gradients(objective, marked(batch, [1.0] * 6), ALL, plan, leaves, part)

    expected, of_all, _ = gradients(objective, batch, ALL, plan, leaves, part)
    assert torch.equal(actual, expected)
    assert torch.equal(loss, of_all)


def test_a_loss_that_is_not_finite_there_has_no_effect(built, batch, plan, leaves, part):
    odd = batch.columns["advantages"].copy()
    odd[1] = np.nan

    actual, loss, _ = gradients(
        built(), marked(batch, KEPT, advantages=odd), ALL, plan, leaves, part
    )

    assert torch.isfinite(loss)
    expected, *_ = gradients(built(), marked(batch, KEPT), ALL, plan, leaves, part)
    assert torch.equal(actual[0][[0, 3, 5]], expected[0][[0, 3, 5]])


def test_of_rows_whose_rewards_count_alone_some_may_be_left_out(built, batch, plan, leaves, part):
    judged = np.array([1, 1, 0, 1, 1, 1], dtype=np.float32)  # row 1 was dropped
    kept = Normalizers(num_actions=5, num_sequences=2, max_actions=4)
    both = replace(plan, normalizers=kept, sampled_normalizers=plan.normalizers)
    batch = marked(batch, KEPT, advantages=np.ones(6, dtype=np.float32), **{JUDGED: judged})

    gradient, _, metrics = gradients(
        built(), batch, ALL, replace(both, on_policy=True), leaves, part
    )

    assert gradient[0].tolist() == pytest.approx([-each / 5 for each in KEPT])
    assert metrics["policy/trained_tokens"].value() == pytest.approx(3 / 5)


MASKED = np.array([-1, 1, -1, -1, 0, -1], dtype=np.float32)
"""Advantages of rows of 2, 1 and 3 actions."""
AWAY = np.array([0.5, 0.1, 0.2, 0.4, 0.4, 0.4], dtype=np.float32)
"""Nats by which the sampler's log-probs are above the policy's: 0.3, 0.2 and 0.4 on average over the rows."""


def drifted(batch, leaves):
    rollout = (leaves()[0].detach().numpy() + AWAY).astype(np.float32)
    new = {"advantages": MASKED, "rollout_logprobs": rollout}
    return replace(batch, columns={**batch.columns, **new})


@pytest.mark.parametrize(
    ("threshold", "kept"),
    [
        (0.1, [0, 1, 0, 0, 1, 0]),  # every row is farther away; 1 and 0 are not negative
        (0.25, [0, 1, 1, 0, 1, 0]),
        (0.35, [1, 1, 1, 0, 1, 0]),
        (0.45, [1, 1, 1, 1, 1, 1]),
    ],
)
@pytest.mark.parametrize("cut", [[[0, 1, 2]], [[0], [1], [2]]], ids=["whole", "a_row_at_a_time"])
def test_bad_actions_of_rows_that_the_policy_moved_away_from_are_left_out(
    built, batch, plan, leaves, part, threshold, kept, cut
):
    batch, plan = drifted(batch, leaves), replace(plan, on_policy=True)
    objective = built(off_policy_mask=threshold)

    parts = [gradients(objective, batch, rows, plan, leaves, part) for rows in cut]

    # -A * ratio with the ratio 1, over six actions.
    expected = [-float(a) * k / 6 for a, k in zip(MASKED, kept, strict=True)]
    assert sum(gradient for gradient, *_ in parts)[0].tolist() == pytest.approx(expected)
    left_out = sum(float(metrics["policy/off_policy_tokens"].total) for *_, metrics in parts)
    assert left_out == 6 - sum(kept)


def test_both_masks_leave_out_what_either_does(built, batch, plan, leaves, part):
    batch = marked(drifted(batch, leaves), KEPT)
    objective = built(off_policy_mask=0.35)

    gradient, _, metrics = gradients(
        objective, batch, ALL, replace(plan, on_policy=True), leaves, part
    )

    assert gradient[0].tolist() == pytest.approx([1 / 6, 0, 0, 0, 0, 0])
    assert metrics["policy/trained_tokens"].value() == pytest.approx(3 / 6)
    assert metrics["policy/off_policy_tokens"].value() == pytest.approx(2 / 6)


def test_a_threshold_that_no_row_exceeds_changes_no_bit(built, batch, plan, leaves, part, refs):
    options = {"correction": refs.correction, "kl_estimator": refs.k2}

    actual, loss, _ = gradients(
        built(off_policy_mask=20.0, **options), batch, ALL, plan, leaves, part
    )

    expected, of_all, _ = gradients(built(**options), batch, ALL, plan, leaves, part)
    assert torch.equal(actual, expected)
    assert torch.equal(loss, of_all)


def test_without_the_samplers_logprobs_it_says_that_they_are_missing(
    built, batch, plan, leaves, part
):
    columns = {name: c for name, c in batch.columns.items() if name != "rollout_logprobs"}

    with pytest.raises(
        PluginError, match="rollout_logprobs", check=has_code("plugin/missing-column")
    ):
        gradients(
            built(off_policy_mask=1.0), replace(batch, columns=columns), ALL, plan, leaves, part
        )


def test_the_mask_is_of_the_rows_whose_rewards_count(built, batch, plan, leaves, part):
    judged = np.array([1, 1, 0, 1, 1, 1], dtype=np.float32)
    kept = Normalizers(num_actions=5, num_sequences=2, max_actions=4)
    both = replace(plan, normalizers=kept, sampled_normalizers=plan.normalizers, on_policy=True)
    batch = drifted(batch, leaves)
    batch = replace(batch, columns={**batch.columns, JUDGED: judged})

    gradient, *_ = gradients(built(off_policy_mask=0.35), batch, ALL, both, leaves, part)

    assert gradient[0].tolist() == pytest.approx([1 / 5, -1 / 5, 0, 0, 0, 0])
