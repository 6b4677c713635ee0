"""Generalized advantage estimation."""

import numpy as np
import pytest
import torch

from rlhf_core.contracts import RewardBatch, Trajectory, TrajectoryColumns, Turn, Uid
from rlhf_core.math import masked_mean, masked_var, reward_to_go
from rlhf_plugin_algorithms.advantages.gae import GaeConfig, GaeEstimator, gae_advantages
from rlhf_trainer.learning.advantages import make_reward_batch
from rlhf_trainer.learning.model_outputs import ModelOutputs

NAN = float("nan")


def random_case(seed: int, width: int = 8) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Rewards and values in float64, and a mask with rows of different lengths."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.tensor([width, width // 2, 1])
    mask = torch.arange(width) < lengths[:, None]
    rewards, values = torch.randn(2, 3, width, dtype=torch.float64, generator=generator)
    return torch.where(mask, rewards, 0.0), torch.where(mask, values, 0.0), mask


def batch_of(
    rewards: torch.Tensor,
    values: torch.Tensor,
    mask: torch.Tensor,
    turn: torch.Tensor | None = None,
    final_values: torch.Tensor | None = None,
    truncated: torch.Tensor | None = None,
) -> RewardBatch:
    rows = torch.arange(len(rewards))
    return RewardBatch(
        token_rewards=rewards,
        rewards=torch.where(mask, rewards, 0.0).sum(dim=1),
        action_mask=mask,
        group=rows,
        episode=rows,
        turn=torch.zeros_like(mask, dtype=torch.int64) if turn is None else turn,
        truncated=torch.zeros(len(rewards), dtype=torch.bool) if truncated is None else truncated,
        values=values,
        final_values=final_values,
    )


@pytest.mark.parametrize(
    ("gamma", "lambda_", "expected"),
    [
        # Return minus value: 1 - 0.5, 1 - 0.4, 1 - 0.3
        (1.0, 1.0, [0.5, 0.6, 0.7]),
        # delta = (0.99 * 0.4 - 0.5, 0.99 * 0.3 - 0.4, 1 - 0.3) = (-0.104, -0.103, 0.7), discount 0.9405:
        # A_3 = 0.7, A_2 = -0.103 + 0.9405 * 0.7 = 0.55535, A_1 = -0.104 + 0.9405 * 0.55535 = 0.418307
        (0.99, 0.95, [0.418307, 0.55535, 0.7]),
    ],
)
def test_advantages_by_hand(gamma, lambda_, expected):
    """The numbers are also those of OpenRLHF 0.11.2."""
    rewards, values = torch.tensor([[0.0, 0.0, 1.0]]), torch.tensor([[0.5, 0.4, 0.3]])
    mask = torch.ones(1, 3, dtype=torch.bool)

    actual = gae_advantages(rewards, values, mask, gamma=gamma, lambda_=lambda_)

    torch.testing.assert_close(actual, torch.tensor([expected]), atol=1e-6, rtol=0.0)


def test_parts_of_a_reward_are_credited_to_the_tokens_before_them():
    """From the reward's parts to advantages; gamma and lambda are 1, so an advantage is what comes minus the value."""
    row = Trajectory(
        uid=Uid(0, 0, 0),
        token_ids=np.arange(8, dtype=np.int32),
        action_mask=np.array([False] + [True] * 7),
        rollout_logprobs=np.zeros(7, np.float32),
        weight_version=np.zeros(7, np.int32),
        turns=(Turn(start=1, end=8),),
        reward=0.75,
        step_rewards=((2, 0.5), (5, 0.25)),
    )
    values = np.float32([0.5, 0.25, 0.0, 0.25, 0.5, 1.0, 0.125])
    batch = make_reward_batch(
        TrajectoryColumns.from_trajectories([row]), ModelOutputs(columns={"values": values}), None
    )

    found = GaeEstimator(GaeConfig(gamma=1.0, lambda_=1.0, whiten="none"))(batch)

    # Returns: 0.5 + 0.25 up to token 2, 0.25 up to token 5, nothing after it.
    returns = torch.tensor([[0.75, 0.75, 0.75, 0.25, 0.25, 0.25, 0.0]])
    expected = torch.tensor([[0.25, 0.5, 0.75, 0.0, -0.25, -0.75, -0.125]])
    torch.testing.assert_close(found.advantages, expected, atol=1e-7, rtol=0.0)
    torch.testing.assert_close(found.returns, returns, atol=1e-7, rtol=0.0)


def test_environment_text_between_turns_takes_no_time():
    """OpenRLHF 0.11.2 keeps the environment's token as a column with value 0 and gets (0.41675, 0.7) here."""
    rewards, values = torch.tensor([[0.0, 1.0]]), torch.tensor([[0.5, 0.3]])
    mask = torch.ones(1, 2, dtype=torch.bool)

    actual = gae_advantages(rewards, values, mask, gamma=1.0, lambda_=0.95)

    # A_2 = 1 - 0.3 = 0.7, A_1 = 0.3 - 0.5 + 0.95 * 0.7 = 0.465
    torch.testing.assert_close(actual, torch.tensor([[0.465, 0.7]]), atol=1e-6, rtol=0.0)


@pytest.mark.parametrize("gamma", [1.0, 0.9])
def test_lambda_one_is_the_return_minus_the_value(gamma):
    rewards, values, mask = random_case(0)

    actual = gae_advantages(rewards, values, mask, gamma=gamma, lambda_=1.0)

    expected = torch.where(mask, reward_to_go(rewards, mask, gamma) - values, 0.0)
    torch.testing.assert_close(actual, expected, atol=1e-12, rtol=0.0)


def test_lambda_zero_is_the_td_error():
    rewards, values, mask = random_case(1)

    actual = gae_advantages(rewards, values, mask, gamma=0.9, lambda_=0.0)

    following = torch.cat([values[:, 1:], torch.zeros(3, 1, dtype=torch.float64)], dim=1)
    expected = torch.where(mask, rewards + 0.9 * following - values, 0.0)
    torch.testing.assert_close(actual, expected, atol=1e-12, rtol=0.0)


@pytest.mark.parametrize("width", [1, 5, 8, 33])
def test_it_equals_the_recurrence(width):
    rewards, values, mask = random_case(width, width)
    gamma, lambda_ = 0.97, 0.9

    expected = torch.zeros_like(rewards)
    for row in range(3):
        advantage = following = 0.0
        for token in reversed(range(int(mask[row].sum()))):
            value = values[row, token].item()
            delta = rewards[row, token].item() + gamma * following - value
            advantage = delta + gamma * lambda_ * advantage
            expected[row, token], following = advantage, value

    actual = gae_advantages(rewards, values, mask, gamma=gamma, lambda_=lambda_)
    torch.testing.assert_close(actual, expected, atol=1e-12, rtol=1e-12)


def test_several_rewards_add_up_linearly():
    rewards, values, mask = random_case(2)
    other, nothing = random_case(3)[0], torch.zeros_like(values)

    def estimate(r: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return gae_advantages(r, v, mask, gamma=0.9, lambda_=0.8)

    torch.testing.assert_close(
        estimate(rewards + other, values), estimate(rewards, values) + estimate(other, nothing)
    )


def test_a_critic_that_knows_the_returns_leaves_no_advantage():
    rewards, _, mask = random_case(4)

    actual = gae_advantages(rewards, reward_to_go(rewards, mask, 0.9), mask, gamma=0.9, lambda_=0.7)

    torch.testing.assert_close(actual, torch.zeros_like(actual), atol=1e-12, rtol=0.0)


def test_returns_are_unwhitened_advantages_plus_values():
    rewards, values, mask = random_case(5)
    batch = batch_of(rewards, values, mask)

    result = GaeEstimator(GaeConfig(whiten="full"))(batch)
    raw = GaeEstimator(GaeConfig(whiten="none"))(batch)

    torch.testing.assert_close(raw.returns, torch.where(mask, raw.advantages + values, 0.0))
    torch.testing.assert_close(result.returns, raw.returns)
    assert masked_mean(result.advantages, mask).item() == pytest.approx(0.0, abs=1e-9)
    assert masked_var(result.advantages, mask).item() == pytest.approx(1.0, abs=1e-9)


def test_whitening_the_mean_keeps_differences():
    rewards, values, mask = random_case(6)
    batch = batch_of(rewards, values, mask)

    centered = GaeEstimator(GaeConfig(whiten="mean"))(batch).advantages
    raw = GaeEstimator(GaeConfig(whiten="none"))(batch).advantages

    shift = (raw - centered)[mask]
    torch.testing.assert_close(shift, shift[:1].expand_as(shift))
    assert masked_mean(centered, mask).item() == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize("whiten", ["full", "mean", "none"])
def test_what_stands_at_padding_does_not_matter(whiten):
    rewards, values, mask = random_case(7)
    estimator = GaeEstimator(GaeConfig(whiten=whiten))
    clean = estimator(batch_of(rewards, values, mask))

    dirty = estimator(
        batch_of(torch.where(mask, rewards, NAN), torch.where(mask, values, NAN), mask)
    )

    assert torch.equal(dirty.advantages, clean.advantages)
    assert torch.equal(dirty.returns, clean.returns)
    assert (dirty.advantages[~mask] == 0).all()
    assert (dirty.returns[~mask] == 0).all()


def test_the_order_of_rows_does_not_matter():
    rewards, values, mask = random_case(8)
    order = torch.tensor([2, 0, 1])
    estimator = GaeEstimator(GaeConfig())

    whole = estimator(batch_of(rewards, values, mask))
    shuffled = estimator(batch_of(rewards[order], values[order], mask[order]))

    torch.testing.assert_close(shuffled.advantages, whole.advantages[order])
    torch.testing.assert_close(shuffled.returns, whole.returns[order])


def test_how_actions_are_grouped_into_turns_does_not_matter():
    """Rewards and values say all; turns are a matter of bookkeeping for the critic's estimates."""
    rewards, values, mask = random_case(9)
    turn = torch.where(mask, torch.arange(8) // 2, 0)

    one = GaeEstimator(GaeConfig())(batch_of(rewards, values, mask))
    many = GaeEstimator(GaeConfig())(batch_of(rewards, values, mask, turn))

    assert torch.equal(one.advantages, many.advantages)


def test_arguments_are_left_as_they_are():
    rewards, values, mask = random_case(10)
    before = rewards.clone(), values.clone(), mask.clone()

    GaeEstimator(GaeConfig())(batch_of(rewards, values, mask))

    for old, new in zip(before, (rewards, values, mask), strict=True):
        assert torch.equal(old, new)


def test_returns_by_hand():
    """The numbers are also those of OpenRLHF 0.11.2."""
    values = torch.tensor([[0.5, 0.4, 0.3]])
    batch = batch_of(torch.tensor([[0.0, 0.0, 1.0]]), values, torch.ones(1, 3, dtype=torch.bool))

    returns = GaeEstimator(GaeConfig(gamma=1.0, lambda_=1.0))(batch).returns

    torch.testing.assert_close(returns, torch.ones(1, 3))


BOOTSTRAP = GaeConfig(whiten="none", gamma=0.9, lambda_=0.8, bootstrap_truncated=True)


def test_the_value_after_a_cut_is_added_by_hand():
    mask = torch.tensor([[True, True], [True, False]])
    batch = batch_of(
        torch.tensor([[0.0, 1.0], [1.0, 0.0]]),
        torch.tensor([[0.5, 0.25], [0.5, 0.0]]),
        mask,
        final_values=torch.tensor([2.0, 0.0]),
        truncated=torch.tensor([True, False]),
    )

    result = GaeEstimator(BOOTSTRAP)(batch)

    # Row 0: delta = (0.9 * 0.25 - 0.5, 1 + 0.9 * 2 - 0.25) = (-0.275, 2.55); A_1 = -0.275 + 0.72 * 2.55 = 1.561
    torch.testing.assert_close(result.advantages, torch.tensor([[1.561, 2.55], [0.5, 0.0]]))
    torch.testing.assert_close(result.returns, torch.tensor([[2.061, 2.8], [1.0, 0.0]]))


def test_rows_that_ended_by_themselves_are_not_bootstrapped():
    rewards, values, mask = random_case(11)
    final = torch.tensor([5.0, 5.0, 5.0], dtype=torch.float64)
    plain = GaeEstimator(GaeConfig(whiten="none", gamma=0.9, lambda_=0.8))
    ended = batch_of(rewards, values, mask, final_values=final)

    assert torch.equal(GaeEstimator(BOOTSTRAP)(ended).advantages, plain(ended).advantages)


def test_bootstrapping_is_off_unless_asked_for():
    rewards, values, mask = random_case(12)
    cut = torch.tensor([True, False, True])
    final = torch.tensor([5.0, 0.0, -5.0], dtype=torch.float64)
    estimator = GaeEstimator(GaeConfig())

    actual = estimator(batch_of(rewards, values, mask, final_values=final, truncated=cut))

    assert torch.equal(actual.advantages, estimator(batch_of(rewards, values, mask)).advantages)


def test_with_lambda_one_the_final_value_is_a_discounted_last_reward():
    rewards, values, mask = random_case(13)
    final = torch.tensor([2.0, -1.0, 0.5], dtype=torch.float64)
    last = mask & ~torch.nn.functional.pad(mask[:, 1:], (0, 1))
    with_reward = rewards + torch.where(last, 0.9 * final[:, None], 0.0)

    actual = gae_advantages(rewards, values, mask, gamma=0.9, lambda_=1.0, final_values=final)

    expected = torch.where(mask, reward_to_go(with_reward, mask, 0.9) - values, 0.0)
    torch.testing.assert_close(actual, expected, atol=1e-12, rtol=0.0)


def test_a_cut_response_continued_by_the_critic_equals_the_whole_one():
    """With lambda 0, cutting after token 3 and bootstrapping from the next value loses nothing before the cut."""
    rewards, values, _ = random_case(14)
    whole_mask = torch.ones(1, 8, dtype=torch.bool)
    whole = gae_advantages(rewards[:1], values[:1], whole_mask, gamma=0.9, lambda_=0.0)

    cut = gae_advantages(
        rewards[:1, :3],
        values[:1, :3],
        whole_mask[:, :3],
        gamma=0.9,
        lambda_=0.0,
        final_values=values[:1, 3],
    )

    torch.testing.assert_close(cut, whole[:, :3])


def test_bootstrapping_does_not_read_padding():
    rewards, values, mask = random_case(15)
    cut, final = torch.tensor([True, True, False]), torch.tensor([2.0, -1.0, 0.0]).double()
    estimator = GaeEstimator(BOOTSTRAP)
    clean = estimator(batch_of(rewards, values, mask, final_values=final, truncated=cut))

    dirty = estimator(
        batch_of(
            torch.where(mask, rewards, NAN),
            torch.where(mask, values, NAN),
            mask,
            final_values=final,
            truncated=cut,
        )
    )

    assert torch.equal(dirty.advantages, clean.advantages)
    assert torch.equal(dirty.returns, clean.returns)


def test_the_critic_may_have_a_lambda_of_its_own():
    rewards, values, mask = random_case(16)
    batch = batch_of(rewards, values, mask)

    result = GaeEstimator(GaeConfig(whiten="none", lambda_=0.5, value_lambda_=1.0))(batch)

    policy = GaeEstimator(GaeConfig(whiten="none", lambda_=0.5))(batch)
    critic = GaeEstimator(GaeConfig(whiten="none", lambda_=1.0))(batch)
    assert torch.equal(result.advantages, policy.advantages)
    assert torch.equal(result.returns, critic.returns)
    # With lambda 1 the targets are the observed returns, whatever the critic says.
    torch.testing.assert_close(result.returns, reward_to_go(rewards, mask))


def test_only_bootstrapping_needs_final_values():
    assert GaeConfig().needed_by_options() == frozenset()
    assert GaeConfig(bootstrap_truncated=True).needed_by_options() == {"final_values"}
