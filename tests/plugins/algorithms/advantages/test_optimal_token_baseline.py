"""``optimal_token_baseline``: a baseline for each position, weighted by the energy of gradients."""

import math
from dataclasses import replace

import pytest
import torch

from rlhf_plugin_algorithms.advantages.optimal_token_baseline import (
    OptimalTokenBaseline,
    OptimalTokenBaselineConfig,
    gradient_energy,
)
from rlhf_plugin_algorithms.advantages.reinforce_baseline import (
    ReinforceBaseline,
    ReinforceBaselineConfig,
)

CARRY = OptimalTokenBaseline(OptimalTokenBaselineConfig())
ZERO = OptimalTokenBaseline(OptimalTokenBaselineConfig(tail="zero"))
BOTH = [pytest.param(CARRY, id="carry"), pytest.param(ZERO, id="zero")]
NAN = float("nan")


def with_distributions(batch, seed=0, vocabulary=5):
    """Log-probs of sampled tokens and sums of squares of random distributions; nan at padding."""
    generator = torch.Generator().manual_seed(seed)
    shape = (*batch.action_mask.shape, vocabulary)
    probs = torch.rand(shape, generator=generator, dtype=torch.float64).softmax(dim=-1)
    mask = batch.action_mask
    return replace(
        batch,
        old_logprobs=torch.where(mask, probs[..., 0].log(), NAN).to(batch.rewards.dtype),
        sum_pi_squared=torch.where(mask, probs.square().sum(-1), NAN).to(batch.rewards.dtype),
    )


def with_energy(batch, norms):
    """The same squared norm at every token of a row: log-probs of 0.5, and squares that make it so."""
    shape, dtype = batch.action_mask.shape, batch.rewards.dtype
    return replace(
        batch,
        old_logprobs=torch.full(shape, math.log(0.5), dtype=dtype),
        sum_pi_squared=torch.tensor(norms, dtype=dtype)[:, None].expand(shape),
    )


def test_the_energy_is_the_squared_norm_of_the_gradient_by_the_logits():
    logits = torch.randn(1, 3, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    tokens = torch.tensor([[2, 0, 5]])
    logits.requires_grad_()
    logprobs = logits.log_softmax(-1).gather(-1, tokens[..., None])[..., 0]
    (gradient,) = torch.autograd.grad(logprobs.sum(), logits)
    squares = logits.softmax(-1).square().sum(-1)

    actual = gradient_energy(
        logprobs.detach(), squares.detach(), torch.ones(1, 3, dtype=torch.bool)
    )

    torch.testing.assert_close(actual, gradient.square().sum(-1).cumsum(dim=1))


def test_advantages_by_hand(make_reward_batch):
    batch = make_reward_batch([[(2, 1.0)], [(1, 0.0)], [(3, 0.5)]], group=[0, 0, 0])
    batch = with_energy(batch, [0.25, 0.5, 0.25])

    # 1 - 2 * 0.5 + s = s at each token, summed: row 0: .25 .5; row 1: .5; row 2: .25 .5 .75.
    # Position 0: (.25 * 1 + 0 + .25 * .5) / 1 = .375; position 1: (.5 * 1 + .5 * .5) / 1 = .75; then row 2 is alone.
    carried = torch.tensor([[0.625, 0.25, 0.0], [-0.375, 0.0, 0.0], [0.125, -0.25, -0.25]])
    bare = carried.clone()
    bare[2, 2] = 0.5
    torch.testing.assert_close(CARRY(batch).advantages, carried, atol=1e-6, rtol=0.0)
    torch.testing.assert_close(ZERO(batch).advantages, bare, atol=1e-6, rtol=0.0)


def test_equal_energies_and_lengths_give_the_plain_mean(make_reward_batch):
    batch = make_reward_batch([[(3, r)] for r in (1.0, 0.25, -0.5, 2.0, 0.0)], [0, 0, 0, 1, 1])
    mean = ReinforceBaseline(ReinforceBaselineConfig(whiten="none"))(batch).advantages

    torch.testing.assert_close(CARRY(with_energy(batch, [0.3] * 5)).advantages, mean)


def test_a_policy_that_was_sure_of_everything_gives_the_plain_mean(make_reward_batch):
    """All energies are 0, and 0 / 0 is no baseline."""
    batch = make_reward_batch([[(2, r)] for r in (1.0, 0.0, 0.5)], group=[0] * 3)
    sure = replace(batch, old_logprobs=torch.zeros(3, 2), sum_pi_squared=torch.ones(3, 2))

    expected = torch.tensor([[0.5, 0.5], [-0.5, -0.5], [0.0, 0.0]])
    torch.testing.assert_close(CARRY(sure).advantages, expected)


@pytest.mark.parametrize("tail", ["carry", "zero"])
def test_groups_of_different_sizes_equal_a_loop(make_reward_batch, tail):
    rewards, lengths = [1.0, 0.5, -1.0, 0.25, 2.0, 0.0, 0.75], [1, 4, 2, 3, 5, 2, 6]
    group = [0, 1, 0, 1, 0, 2, 2]
    rows = [[(n, r)] for n, r in zip(lengths, rewards, strict=True)]
    batch = with_distributions(make_reward_batch(rows, group, dtype=torch.float64))
    estimator = OptimalTokenBaseline(OptimalTokenBaselineConfig(tail=tail))

    actual = estimator(batch).advantages

    def energy(row, token):
        total = 0.0
        for t in range(token + 1):
            probability = math.exp(batch.old_logprobs[row, t])
            total += 1 - 2 * probability + batch.sum_pi_squared[row, t].item()
        return total

    for i in range(7):
        baseline = 0.0
        for t in range(lengths[i]):
            alive = [j for j in range(7) if group[j] == group[i] and lengths[j] > t]
            if len(alive) > 1:
                weights = [energy(j, t) for j in alive]
                earned = sum(w * rewards[j] for w, j in zip(weights, alive, strict=True))
                baseline = earned / sum(weights)
            elif tail == "zero":
                baseline = 0.0
            assert actual[i, t].item() == pytest.approx(rewards[i] - baseline, abs=1e-6)


@pytest.mark.parametrize(("value", "size"), [(0.1, 8), (0.3, 7), (0.9, 16)])
def test_equal_rewards_give_no_advantage(make_reward_batch, value, size):
    batch = make_reward_batch([[(1 + i, value)] for i in range(size)], group=[0] * size)

    assert (CARRY(with_distributions(batch)).advantages == 0).all()


@pytest.mark.parametrize("estimator", BOTH)
def test_what_stands_at_padding_does_not_matter(make_reward_batch, estimator):
    rows, group = [[(2, 1.0)], [(1, 0.0)], [(4, 0.5)]], [0, 0, 0]
    batch = with_distributions(make_reward_batch(rows, group))  # nan at padding
    mask = batch.action_mask
    clean = replace(
        batch,
        old_logprobs=torch.where(mask, batch.old_logprobs, -1.0),
        sum_pi_squared=torch.where(mask, batch.sum_pi_squared, 0.5),
    )

    assert torch.equal(estimator(batch).advantages, estimator(clean).advantages)
    assert (estimator(batch).advantages[~mask] == 0).all()


@pytest.mark.parametrize("estimator", BOTH)
def test_a_group_of_one_gives_no_advantage(make_reward_batch, estimator):
    batch = with_distributions(make_reward_batch([[(2, 0.7)]], group=[0]))

    assert estimator(batch).advantages.tolist() == [[0.0, 0.0]]


@pytest.mark.parametrize("estimator", BOTH)
def test_a_row_without_actions_is_no_sample(make_reward_batch, estimator):
    empty = with_distributions(make_reward_batch([[(2, 1.0)], [(2, 0.0)], [(2, 5.0)]], [0] * 3))
    mask = empty.action_mask.clone()
    mask[2] = False

    actual = estimator(replace(empty, action_mask=mask)).advantages

    two = with_distributions(make_reward_batch([[(2, 1.0)], [(2, 0.0)]], [0] * 2))
    assert (actual[2] == 0).all()
    kept = replace(
        two, old_logprobs=empty.old_logprobs[:2], sum_pi_squared=empty.sum_pi_squared[:2]
    )
    torch.testing.assert_close(actual[:2], estimator(kept).advantages)


def test_an_episode_in_three_equal_rows_has_the_weight_of_one(make_reward_batch):
    rewards, rows = [1.0, 0.0, 0.5], [0, 0, 0, 1, 2]
    single = with_distributions(make_reward_batch([[(2, r)] for r in rewards], [0] * 3))
    split = make_reward_batch([[(2, rewards[i])] for i in rows], [0] * 5, episode=rows)
    split = replace(
        split, old_logprobs=single.old_logprobs[rows], sum_pi_squared=single.sum_pi_squared[rows]
    )

    torch.testing.assert_close(CARRY(split).advantages, CARRY(single).advantages[rows])


def test_the_kl_penalty_stays_out_of_the_baseline(make_reward_batch):
    rows, group = [[(2, 1.0)], [(2, 0.0)]], [0, 0]
    plain = with_distributions(make_reward_batch(rows, group))
    fined = with_distributions(make_reward_batch(rows, group, kl_penalty=-0.125))

    change = CARRY(fined).advantages - CARRY(plain).advantages

    torch.testing.assert_close(change, torch.tensor([[-0.25, -0.125]] * 2))


def test_the_tail_of_the_longest_episode_has_no_baseline_in_its_own_rows(make_reward_batch):
    """Its two rows of four tokens reach beyond the other episode together; they are one sample all the same."""
    rows, episode = [[(4, 1.0)], [(4, 1.0)], [(2, 0.0)]], [0, 0, 1]
    alone = with_distributions(make_reward_batch([rows[0], rows[2]], [0, 0]))
    split = replace(
        make_reward_batch(rows, [0] * 3, episode=episode),
        old_logprobs=alone.old_logprobs[episode],
        sum_pi_squared=alone.sum_pi_squared[episode],
    )

    torch.testing.assert_close(CARRY(split).advantages, CARRY(alone).advantages[episode])
