"""From a batch of trajectories to the estimator's view and back."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from rlhf_core.contracts import (
    Advantages,
    Trajectory,
    TrajectoryColumns,
    Turn,
    Uid,
    metric_values,
)
from rlhf_core.errors import NonFiniteError, PluginError
from rlhf_core.learning.scoring import (
    KlPenalty,
    Scores,
    advantages,
    group_metrics,
    make_reward_batch,
)

NOTHING = Scores(columns={})


@pytest.fixture
def batch():
    """Row 0: two turns of 2 and 1 actions with an environment token between; row 1: one turn of 2 actions."""
    two_turns = Trajectory(
        uid=Uid(0, 4, 0),
        token_ids=np.array([9, 1, 2, 8, 3], np.int32),
        action_mask=np.array([False, True, True, False, True]),
        rollout_logprobs=np.zeros(3, np.float32),
        weight_version=np.zeros(3, np.int32),
        turns=(Turn(start=1, end=3, reward=0.5), Turn(start=4, end=5, reward=0.25)),
        reward=2.0,
    )
    one_turn = Trajectory(
        uid=Uid(0, 4, 1),
        token_ids=np.array([9, 1, 2], np.int32),
        action_mask=np.array([False, True, True]),
        rollout_logprobs=np.zeros(2, np.float32),
        weight_version=np.zeros(2, np.int32),
        turns=(Turn(start=1, end=3),),
        reward=-1.0,
    )
    return TrajectoryColumns.from_trajectories([two_turns, one_turn])


def test_rewards_stand_on_their_last_action_and_environment_tokens_do_not_exist(batch):
    made = make_reward_batch(batch, NOTHING, None)

    # row 0: turn rewards 0.5 and 0.25, the episode's 2.0 on the last action; row 1: -1 on its last action
    torch.testing.assert_close(made.token_rewards, torch.tensor([[0, 0.5, 2.25], [0, -1.0, 0]]))
    torch.testing.assert_close(made.rewards, torch.tensor([2.75, -1.0]))
    assert made.turn.tolist() == [[0, 0, 1], [0, 0, 0]]
    assert made.action_mask.tolist() == [[True, True, True], [True, True, False]]
    assert made.group.tolist() == [0, 0]
    assert made.episode.tolist() == [0, 1]


def test_a_kl_in_the_reward_acts_on_every_action(batch):
    columns = {
        "old_logprobs": np.float32([-1.0, -2.0, -0.5, -1.0, -1.0]),
        "ref_logprobs": np.float32([-1.5, -1.0, -0.5, -1.0, -3.0]),
    }
    made = make_reward_batch(batch, Scores(columns=columns), KlPenalty(coef=0.1, estimator="k1"))

    # k1 = old - ref = .5, -1, 0 | 0, 2; times -0.1
    penalty = torch.tensor([[-0.05, 0.1, 0.0], [0.0, -0.2, 0.0]])
    torch.testing.assert_close(made.kl_penalty, penalty)
    torch.testing.assert_close(
        made.token_rewards, penalty + torch.tensor([[0, 0.5, 2.25], [0, -1.0, 0]])
    )
    torch.testing.assert_close(made.rewards, torch.tensor([2.75, -1.0]))


def test_the_measured_kl_does_not_depend_on_the_coefficient(batch):
    columns = {
        "old_logprobs": np.float32([-1.0, -2.0, -0.5, -1.0, -1.0]),
        "ref_logprobs": np.float32([-1.5, -1.0, -0.5, -1.0, -3.0]),
    }
    for coef in (0.1, 3.0):
        _, metrics = advantages(
            batch, Scores(columns=columns), constant(1.0), KlPenalty(coef=coef, estimator="k1")
        )
        assert metrics["kl/ref"].value() == pytest.approx((0.5 - 1 + 0 + 0 + 2) / 5)


def constant(value):
    return lambda made: Advantages(advantages=torch.full(made.action_mask.shape, value))


def test_advantages_come_back_as_a_flat_column(batch):
    columns, _ = advantages(
        batch, NOTHING, lambda made: Advantages(advantages=made.token_rewards), None
    )

    np.testing.assert_allclose(columns["advantages"], [0, 0.5, 2.25, 0, -1.0])


def test_an_advantage_that_is_not_finite_names_the_sample(batch):
    def broken(made):
        values = torch.zeros(made.action_mask.shape)
        values[1, 1] = torch.nan
        return Advantages(advantages=values)

    with pytest.raises(
        NonFiniteError, match=r"advantages of sample 0\.4\.1\.0 is nan at action token 1"
    ):
        advantages(batch, NOTHING, broken, None)


def test_nan_at_padding_is_no_problem(batch):
    def sloppy(made):
        return Advantages(advantages=torch.where(made.action_mask, 1.0, torch.nan))

    columns, _ = advantages(batch, NOTHING, sloppy, None)

    np.testing.assert_array_equal(columns["advantages"], np.ones(5))


def test_a_wrong_shape_is_refused(batch):
    with pytest.raises(PluginError, match=r"shape \(2,\); expected \(2, 3\)"):
        advantages(batch, NOTHING, lambda made: Advantages(advantages=made.rewards), None)


def test_an_estimator_with_values_owes_returns(batch):
    with pytest.raises(PluginError, match="no returns"):
        advantages(batch, Scores(columns={"values": np.zeros(5, np.float32)}), constant(1.0), None)


def test_explained_variance_by_hand(batch):
    returns = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 0.0]])
    columns = {"values": np.float32([1.0, 2.0, 3.0, 4.0, 3.0])}

    def estimator(made):
        return Advantages(advantages=returns, returns=returns)

    _, metrics = advantages(batch, Scores(columns=columns), estimator, None)

    # returns 1..5 have variance 2; the errors (0, 0, 0, 0, 2) have variance 4/5 - (2/5)^2 = 0.64
    assert metrics["critic/explained_variance"].value() == pytest.approx(1 - 0.64 / 2)


def test_group_metrics_by_hand():
    def row(prompt, sample, reward):
        return Trajectory(
            uid=Uid(0, prompt, sample),
            token_ids=np.array([9, 1], np.int32),
            action_mask=np.array([False, True]),
            rollout_logprobs=np.zeros(1, np.float32),
            weight_version=np.zeros(1, np.int32),
            turns=(Turn(start=1, end=2),),
            reward=reward,
        )

    # group 0: rewards 1 and 0, std 0.5; group 1: 1 and 1, nothing to learn from
    rows = [row(0, 0, 1.0), row(0, 1, 0.0), row(1, 0, 1.0), row(1, 1, 1.0)]
    made = make_reward_batch(TrajectoryColumns.from_trajectories(rows), NOTHING, None)

    assert metric_values(group_metrics(made)) == {"group/reward_std": 0.25, "group/no_signal": 0.5}
    assert metric_values(group_metrics(replace(made, rewards=made.rewards + 7))) == {
        "group/reward_std": 0.25,
        "group/no_signal": 0.5,
    }


def test_token_rewards_are_openrlhfs_after_clipping():
    """Its example: rewards (1, -20) clipped to [-10, 10], coefficient 0.5, k = (.1, .2) and (.1, .1, .1, .1)."""
    lengths, k = (2, 4), np.float32([0.1, 0.2, 0.1, 0.1, 0.1, 0.1])
    rows = [
        Trajectory(
            uid=Uid(0, 0, sample),
            token_ids=np.zeros(1 + length, np.int32),
            action_mask=np.arange(1 + length) > 0,
            rollout_logprobs=np.zeros(length, np.float32),
            weight_version=np.zeros(length, np.int32),
            turns=(Turn(start=1, end=1 + length),),
            reward=reward,
        )
        for sample, (length, reward) in enumerate(zip(lengths, (1.0, -20.0), strict=True))
    ]
    batch = TrajectoryColumns.from_trajectories(rows)
    batch = replace(batch, reward=batch.reward.clip(-10.0, 10.0))
    scores = Scores(columns={"old_logprobs": k, "ref_logprobs": np.zeros(6, np.float32)})

    made = make_reward_batch(batch, scores, KlPenalty(coef=0.5, estimator="k1"))

    expected = torch.tensor([[-0.05, 0.9, 0, 0], [-0.05, -0.05, -0.05, -10.05]])
    torch.testing.assert_close(made.token_rewards, expected)
