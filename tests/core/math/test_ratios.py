"""Mismatch between the trainer's and the sampler's log-probs, over a whole batch."""

import math

import pytest
import torch

from rlhf_core.batch.metric import metric_values
from rlhf_core.math import mismatch_metrics, off_policy_mask

# Rows of 3 and 2 tokens.
MASK = torch.tensor([[True, True, True], [True, True, False]])
TRAINER = torch.tensor([[0.6, 0.6, 0.2], [0.5, 0.45, 1.0]], dtype=torch.float64).log()
SAMPLER = torch.tensor([[0.4, 0.2, 0.5], [0.5, 0.5, 1.0]], dtype=torch.float64).log()


def values_of(trainer=TRAINER, sampler=SAMPLER, mask=MASK):
    return metric_values(mismatch_metrics(trainer, sampler, mask))


def test_each_metric_by_hand():
    """Token weights are 1.5, 3, 0.4, 1 and 0.9; those of the sequences 1.5 * 3 * 0.4 = 1.8 and 1 * 0.9 = 0.9."""
    actual = values_of()

    # logs: 0.405465, 1.098612, -0.916291, 0, -0.105361
    expected = {
        "mismatch/logprob_diff_mean": 0.505146,  # (0.405465 + 1.098612 + 0.916291 + 0.105361) / 5
        "mismatch/logprob_diff_p99": 1.098612,  # the ceil(0.99 * 5) = 5th of 5
        "mismatch/logprob_diff_max": 1.098612,
        "mismatch/k1": -0.096485,  # minus the sum of the logs, 0.482426, / 5
        "mismatch/k3": 0.263515,  # the mean weight 6.8 / 5 = 1.36, - 1 + k1
        # 6.8^2 / (5 * (2.25 + 9 + 0.16 + 1 + 0.81)) = 46.24 / 66.1
        "mismatch/ess": 0.699546,
        "mismatch/ess_sequence": 0.9,  # 2.7^2 = 7.29 / (2 * 4.05)
    }
    assert actual == pytest.approx(expected, abs=1e-6)


def test_the_sign_of_k1_is_that_of_openrlhfs_vllm_kl():
    """Measured with OpenRLHF 0.11.2 on the same numbers: -0.096485."""
    assert values_of()["mismatch/k1"] == pytest.approx(-0.096485, abs=1e-6)


def test_equal_logprobs_have_no_mismatch_and_lose_no_data():
    actual = values_of(sampler=TRAINER)

    ess = {"mismatch/ess", "mismatch/ess_sequence"}
    assert actual == {name: 1.0 if name in ess else 0.0 for name in actual}
    assert ess < set(actual)


def test_a_constant_ratio_loses_no_data():
    """ESS is about how unequal weights are, not how large."""
    sampler = torch.where(MASK, TRAINER - 0.3, 0.0)
    actual = values_of(sampler=sampler)

    assert actual["mismatch/ess"] == pytest.approx(1.0)
    assert actual["mismatch/k1"] == pytest.approx(-0.3)


def test_one_dominating_token_leaves_one_of_n():
    trainer, sampler = torch.zeros(1, 50), torch.zeros(1, 50)
    trainer[0, 7] = 40.0

    actual = values_of(trainer, sampler, torch.ones(1, 50, dtype=torch.bool))

    assert actual["mismatch/ess"] == pytest.approx(1 / 50)


def test_k1_and_k3_estimate_the_kl_from_sampler_to_trainer():
    """Exact, with each token of a small vocabulary as often as the sampler draws it: 5, 3 and 2 of 10."""
    sampler = torch.tensor([[0.5] * 5 + [0.3] * 3 + [0.2] * 2], dtype=torch.float64).log()
    trainer = torch.tensor([[0.2] * 5 + [0.3] * 3 + [0.5] * 2], dtype=torch.float64).log()
    kl = 0.5 * math.log(0.5 / 0.2) + 0.2 * math.log(0.2 / 0.5)

    actual = values_of(trainer, sampler, torch.ones(1, 10, dtype=torch.bool))

    assert actual["mismatch/k1"] == pytest.approx(kl, rel=1e-12)
    assert actual["mismatch/k3"] == pytest.approx(kl, rel=1e-12)


@pytest.mark.parametrize("count", [1, 99, 100, 101, 1000])
def test_the_quantile_is_the_smallest_that_bounds_99_percent(count):
    generator = torch.Generator().manual_seed(count)
    sampler = -torch.rand(1, count, generator=generator, dtype=torch.float64)
    ordered = sorted(-value for value in sampler[0].tolist())
    expected = next(
        value for value in ordered if sum(other <= value for other in ordered) * 100 >= 99 * count
    )

    actual = values_of(torch.zeros_like(sampler), sampler, torch.ones(1, count, dtype=torch.bool))

    assert actual["mismatch/logprob_diff_p99"] == expected


def test_padding_and_the_order_of_rows_change_nothing():
    def wider(column):
        wide = torch.nn.functional.pad(column, (0, 4), value=math.nan)
        return torch.where(torch.nn.functional.pad(MASK, (0, 4)), wide, math.nan).flip(0)

    mask = torch.nn.functional.pad(MASK, (0, 4)).flip(0)

    assert values_of(wider(TRAINER), wider(SAMPLER), mask) == pytest.approx(values_of(), rel=1e-12)


def test_rows_without_tokens_do_not_count():
    mask = torch.cat((MASK, torch.zeros(2, 3, dtype=torch.bool)))
    trainer, sampler = (torch.cat((column, column)) for column in (TRAINER, SAMPLER))

    assert values_of(trainer, sampler, mask) == pytest.approx(values_of(), rel=1e-12)


def test_a_batch_without_tokens_has_no_metrics():
    assert values_of(mask=torch.zeros_like(MASK)) == {}


@pytest.mark.parametrize("difference", [50.0, -50.0, 1e4])
def test_large_differences_over_long_responses_stay_finite(difference):
    trainer = torch.zeros(2, 10_000)
    sampler = torch.cat((trainer[:1] - difference, trainer[:1]))

    actual = values_of(trainer, sampler, torch.ones(2, 10_000, dtype=torch.bool))

    assert all(math.isfinite(value) for value in actual.values()), actual
    assert actual["mismatch/ess_sequence"] == pytest.approx(0.5)


def test_the_maximum_of_several_batches_is_the_largest():
    small, large = (
        mismatch_metrics(factor * TRAINER, factor * SAMPLER, MASK) for factor in (1.0, 2.0)
    )
    name = "mismatch/logprob_diff_max"

    assert small[name].merge(large[name]).value() == pytest.approx(2.197225, abs=1e-6)


@pytest.mark.parametrize("seed", range(4))
def test_the_off_policy_mask_is_that_of_a_loop_over_rows(seed):
    draw = torch.Generator().manual_seed(seed)
    mask = torch.arange(7) < torch.tensor([7, 3, 1, 0, 5])[:, None]
    policy, rollout, advantages = torch.randn(3, 5, 7, generator=draw, dtype=torch.float64)
    rollout = rollout + 0.5
    padded = [torch.where(mask, each, torch.nan) for each in (policy, rollout, advantages)]

    actual = off_policy_mask(*padded, mask, threshold=0.2)

    expected = torch.zeros_like(mask)
    for row, length in enumerate((7, 3, 1, 0, 5)):
        away = [float(rollout[row, t] - policy[row, t]) for t in range(length)]
        for t in range(length):
            expected[row, t] = float(advantages[row, t]) >= 0 or sum(away) / length <= 0.2
    assert torch.equal(actual, expected)
    assert 0 < int(actual.sum()) < int(mask.sum())
