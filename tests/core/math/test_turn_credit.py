"""Turns in the order of their episode, and what other rows earned between them."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import torch

from rlhf_core.contracts import Trajectory, TrajectoryColumns, Turn, Uid
from rlhf_core.math import reward_to_go, rewards_by_turn
from rlhf_core.math.turns import turn_credit
from rlhf_trainer.learning.advantages import make_reward_batch
from rlhf_trainer.learning.model_outputs import ModelOutputs


def row(uid, places, rewards, of_episode=0.0, in_others=0.0):
    """Turns of one token each, with a token of the environment before each."""
    count = len(places)
    return Trajectory(
        uid=Uid(*uid),
        token_ids=np.arange(2 * count, dtype=np.int32),
        action_mask=np.arange(2 * count) % 2 == 1,
        rollout_logprobs=np.zeros(count, np.float32),
        weight_version=np.zeros(count, np.int32),
        turns=tuple(
            Turn(start=2 * turn + 1, end=2 * turn + 2, reward=rewards[turn], place=place)
            for turn, place in enumerate(places)
        ),
        reward=of_episode + in_others,
    )


def cut(episode, earned, owners, of_episode):
    """One row for each owner: turn k of the episode earned ``earned[k]`` and stands on row ``owners[k]``."""
    rows = []
    for segment in range(max(owners) + 1):
        places = [place for place, owner in enumerate(owners) if owner == segment]
        own = [earned[place] for place in places]
        uid = (0, 0, episode, segment)
        rows.append(row(uid, places, own, of_episode, sum(earned) - sum(own)))
    return rows


def test_credit_by_hand():
    # The episode's turns earn 1, 2, 4, 8 and stand on rows 0, 1, 1, 0; the episode earns 16.
    columns = TrajectoryColumns.from_trajectories(cut(0, [1.0, 2.0, 4.0, 8.0], [0, 1, 1, 0], 16.0))

    number, elsewhere = turn_credit(columns)

    assert number.tolist() == [0, 3, 1, 2]
    # After row 0's first turn 2 and 4, after its last the episode's 16. Row 1's first turn is followed by its last, and
    # that by 8 on the other row, and 16.
    assert elsewhere.tolist() == [6.0, 16.0, 0.0, 24.0]
    made = make_reward_batch(columns, ModelOutputs(columns={}), None)
    # Row 0: 1 and the 6 in between; 8 and the episode's 16. Row 1: 2; 4, then 8 on the other row, and 16.
    torch.testing.assert_close(made.token_rewards, torch.tensor([[7.0, 24.0], [2.0, 28.0]]))
    torch.testing.assert_close(rewards_by_turn(made), torch.tensor([[31.0, 30.0, 28.0, 24.0]] * 2))


def test_turns_without_places_follow_their_rows():
    columns = TrajectoryColumns.from_trajectories(cut(0, [1.0, 2.0, 4.0], [0, 0, 1], 0.0))
    unplaced = replace(columns, turn_places=np.zeros_like(columns.turn_places))

    number, elsewhere = turn_credit(unplaced)

    assert number.tolist() == [0, 1, 2]
    # The 4 of row 1, after row 0's last turn; nothing after row 1's, for row 0 earned its 3 before.
    assert elsewhere.tolist() == [0.0, 4.0, 0.0]


def test_with_one_row_per_episode_nothing_is_earned_elsewhere_to_the_bit():
    generator = np.random.default_rng(0)
    rows = [
        row((0, 0, sample, 0), list(range(turns)), generator.normal(size=turns).tolist(), 0.1)
        for sample, turns in enumerate([3, 1, 7, 2])
    ]
    columns = TrajectoryColumns.from_trajectories(rows)

    number, elsewhere = turn_credit(columns)

    ends = np.zeros(len(elsewhere), np.float32)
    ends[columns.action_offsets[1:] - 1] = columns.reward_at_end
    assert elsewhere.tolist() == ends.tolist()
    assert number.tolist() == columns.action_turn.tolist()


def test_an_episode_earns_the_same_however_it_is_cut():
    """At each turn: the sum of the token rewards from it on, and the rewards by turn, equal a loop over the episode."""
    generator = np.random.default_rng(0)
    rows, expected = [], []
    for episode, turns in enumerate([1, 6, 9, 4]):
        earned, of_episode = generator.normal(size=turns), float(generator.normal())
        owners = np.sort(generator.integers(0, 3, turns)) if episode % 2 else np.arange(turns) % 3
        owners = np.unique(owners, return_inverse=True)[1].tolist()
        rows += cut(episode, earned.tolist(), owners, of_episode)
        for segment in range(max(owners) + 1):
            expected.append(
                [
                    of_episode + earned[place:].sum()
                    for place, owner in enumerate(owners)
                    if owner == segment
                ]
            )
    made = make_reward_batch(
        TrajectoryColumns.from_trajectories(rows), ModelOutputs(columns={}), None
    )
    flat = torch.tensor([number for of_row in expected for number in of_row], dtype=torch.float32)

    to_go = reward_to_go(made.token_rewards, made.action_mask)[made.action_mask]
    by_turn = rewards_by_turn(made)
    at_turns = by_turn.gather(1, made.turn)[made.action_mask]

    # Sums of at most 10 numbers of about 1, in float32.
    torch.testing.assert_close(to_go, flat, atol=1e-5, rtol=0.0)
    torch.testing.assert_close(at_turns, flat, atol=1e-5, rtol=0.0)
    for first, second in pairwise(range(len(rows))):
        if made.episode[first] == made.episode[second]:
            torch.testing.assert_close(by_turn[first], by_turn[second], atol=1e-5, rtol=0.0)
