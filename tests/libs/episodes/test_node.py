"""Tokens of an answer that are actions, where a grammar decided some of them."""

import numpy as np
import pytest

from rlhf_core.contracts import Completion, Stop, Uid
from rlhf_episodes import EpisodeGraph
from rlhf_episodes.answers import MAX_MASKED


def completion(token_ids, mass=None):
    count = len(token_ids)
    return Completion(
        token_ids=np.array(token_ids, dtype=np.int32),
        logprobs=-np.arange(1, count + 1, dtype=np.float32),
        weight_version=np.zeros(count, dtype=np.int32),
        stop=Stop.EOS,
        allowed_mass=None if mass is None else np.array(mass, dtype=np.float32),
    )


def test_tokens_at_which_the_grammar_took_too_much_are_context():
    graph = EpisodeGraph(Uid(0, 3))
    node = graph.add([1, 2], completion([3, 4, 5], [1.0, 0.5, 1.0 - MAX_MASKED / 2]))
    graph.reward(node, 0.5)

    (row,) = graph.trajectories()

    assert row.action_mask.tolist() == [False, False, True, False, True]
    np.testing.assert_array_equal(row.rollout_logprobs, [-1.0, -3.0])
    (turn,) = row.turns
    assert (turn.start, turn.end, turn.reward) == (2, 5, 0.5)
    assert row.turn_actions == [2]


def test_a_turn_that_was_decided_is_read_and_its_reward_is_the_episodes():
    graph = EpisodeGraph(Uid(0, 3))
    decided = graph.add([1, 2], completion([3, 4], [0.1, 0.9]))
    free = graph.add([1, 2, 3, 4, 5], completion([6]))
    graph.reward(decided, 0.25)
    graph.reward(free, 0.5)

    (row,) = graph.trajectories(rewards={"agent": 1.0})

    assert row.action_mask.tolist() == [False] * 5 + [True]
    assert [turn.reward for turn in row.turns] == [0.5]
    assert row.reward == 1.25
    assert row.total_reward == 1.75


def test_a_path_that_was_decided_is_no_trajectory():
    graph = EpisodeGraph(Uid(0, 3))
    graph.add([1, 2], completion([3]))
    graph.add([7, 8], completion([9], [0.2]))

    (row,) = graph.trajectories()

    assert row.token_ids.tolist() == [1, 2, 3]
    assert row.is_final


@pytest.mark.parametrize("mass", [None, [1.0, 1.0]])
def test_without_a_grammar_that_decides_all_tokens_are_actions(mass):
    node = EpisodeGraph(Uid(0, 3)).add([1], completion([2, 3], mass))

    assert node.learned.tolist() == [True, True]
