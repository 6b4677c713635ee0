"""From a batch of trajectories to the estimator's view."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from rlhf_core import NonFiniteError
from rlhf_core.contracts import Trajectory, TrajectoryColumns, Turn, Uid, metric_values
from rlhf_plugin_algorithms.kl.k1 import k1
from rlhf_trainer.learning.advantages import KlPenalty, group_metrics, make_reward_batch
from rlhf_trainer.learning.model_outputs import ModelOutputs

NOTHING = ModelOutputs(columns={})


def test_rewards_stand_on_their_last_action_and_environment_tokens_do_not_exist(batch):
    made = make_reward_batch(batch, NOTHING, None)

    # row 0: turn rewards 0.5 and 0.25, the episode's 2.0 on the last action; row 1: -1 on its last action
    torch.testing.assert_close(made.token_rewards, torch.tensor([[0, 0.5, 2.25], [0, -1.0, 0]]))
    torch.testing.assert_close(made.rewards, torch.tensor([2.75, -1.0]))
    assert made.turn.tolist() == [[0, 0, 1], [0, 0, 0]]
    assert made.action_mask.tolist() == [[True, True, True], [True, True, False]]
    assert made.group.tolist() == [0, 0]
    assert made.episode.tolist() == [0, 1]


def in_steps() -> list[Trajectory]:
    """Two turns of 3 and 3 actions with a token of the environment between; one turn of 2 actions; 6 actions whole."""

    def row(sample, turns, reward, step_rewards=()):
        mask = [any(turn.start <= at < turn.end for turn in turns) for at in range(turns[-1].end)]
        count = sum(mask)
        return Trajectory(
            uid=Uid(0, 4, sample),
            token_ids=np.arange(len(mask), dtype=np.int32),
            action_mask=np.array(mask),
            rollout_logprobs=np.zeros(count, np.float32),
            weight_version=np.zeros(count, np.int32),
            turns=turns,
            reward=reward,
            step_rewards=step_rewards,
        )

    two_turns = (Turn(start=1, end=4, reward=8.0), Turn(start=5, end=8))
    return [
        row(0, two_turns, 0.75, ((2, 0.5), (5, 0.25))),
        row(1, (Turn(start=1, end=3),), 1.0, ((0, 0.25), (0, 0.25), (1, 0.5))),
        row(2, (Turn(start=1, end=7),), 2.0),
    ]


def test_parts_stand_on_their_actions_beside_turn_rewards_and_the_rest_on_the_last():
    columns = TrajectoryColumns.from_trajectories(in_steps())

    made = make_reward_batch(columns, NOTHING, None)

    # Row 0: the environment's 8 at the end of its first turn, which is action 2 too. Row 1: two parts on action 0.
    expected = torch.tensor([[0, 0, 8.5, 0, 0, 0.25], [0.5, 0.5, 0, 0, 0, 0], [0, 0, 0, 0, 0, 2.0]])
    torch.testing.assert_close(made.token_rewards, expected, atol=0.0, rtol=0.0)
    assert made.rewards.tolist() == [8.75, 1.0, 2.0]
    # What a shaper adds to the sum stands on the last action.
    shaped = replace(columns, reward=columns.reward - np.float32([1.0, 0.0, 3.0]))
    expected[torch.arange(3), torch.tensor([5, 1, 5])] -= torch.tensor([1.0, 0.0, 3.0])
    made = make_reward_batch(shaped, NOTHING, None)
    torch.testing.assert_close(made.token_rewards, expected, atol=0.0, rtol=0.0)


def test_parts_follow_their_rows_through_a_permutation():
    columns = TrajectoryColumns.from_trajectories(in_steps())
    order = [2, 0, 1]

    moved = make_reward_batch(columns.select(np.array(order)), NOTHING, None)

    plain = make_reward_batch(columns, NOTHING, None)
    torch.testing.assert_close(moved.token_rewards, plain.token_rewards[order], atol=0.0, rtol=0.0)


def test_a_kl_in_the_reward_acts_on_every_action(batch):
    columns = {
        "old_logprobs": np.float32([-1.0, -2.0, -0.5, -1.0, -1.0]),
        "ref_logprobs": np.float32([-1.5, -1.0, -0.5, -1.0, -3.0]),
    }
    made = make_reward_batch(
        batch, ModelOutputs(columns=columns), KlPenalty(coef=0.1, estimator=k1)
    )

    # k1 = old - ref = .5, -1, 0 | 0, 2; times -0.1
    penalty = torch.tensor([[-0.05, 0.1, 0.0], [0.0, -0.2, 0.0]])
    torch.testing.assert_close(made.kl_penalty, penalty)
    torch.testing.assert_close(
        made.token_rewards, penalty + torch.tensor([[0, 0.5, 2.25], [0, -1.0, 0]])
    )
    torch.testing.assert_close(made.rewards, torch.tensor([2.75, -1.0]))


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
    outputs = ModelOutputs(columns={"old_logprobs": k, "ref_logprobs": np.zeros(6, np.float32)})

    made = make_reward_batch(batch, outputs, KlPenalty(coef=0.5, estimator=k1))

    expected = torch.tensor([[-0.05, 0.9, 0, 0], [-0.05, -0.05, -0.05, -10.05]])
    torch.testing.assert_close(made.token_rewards, expected)


def test_an_estimate_that_is_not_finite_names_the_estimator_and_the_log_ratio(batch):
    columns = {
        "old_logprobs": np.array([-1.0, -2.0, -3.0, -1.0, -1.0], np.float32),
        "ref_logprobs": np.array([-1.0, -4.0, -3.0, -1.0, -1.0], np.float32),
    }
    kl = KlPenalty(
        coef=0.1,
        estimator=lambda log_ratio: torch.where(log_ratio > 1, torch.nan, log_ratio),
        label="--algo.kl.estimator mine (my-plugin 3.1)",
    )

    with pytest.raises(NonFiniteError) as caught:
        make_reward_batch(batch, ModelOutputs(columns=columns), kl)

    assert str(caught.value).startswith(
        "--algo.kl.estimator mine (my-plugin 3.1): it gave nan for the log-ratio 2; expected a finite"
    )
