"""Trajectories and their columns: packing loses nothing, and impossible trajectories are refused."""

import numpy as np
import pytest

from rlhf_core.contracts import Stop, Trajectory, TrajectoryColumns, Turn, Uid


def make(
    uid: Uid, prompt: int, turns: list[tuple[int, float]], gap: int = 0, **kwargs
) -> Trajectory:
    """A trajectory with ``prompt`` prompt tokens and turns of (length, reward), ``gap`` tokens between turns."""
    mask, spans, position = [False] * prompt, [], prompt
    for index, (length, reward) in enumerate(turns):
        if index:
            mask += [False] * gap
            position += gap
        spans.append(Turn(start=position, end=position + length, reward=reward))
        mask += [True] * length
        position += length
    num_actions = sum(mask)
    rng = np.random.default_rng(abs(hash(uid)) % 1000)
    return Trajectory(
        uid=uid,
        token_ids=rng.integers(0, 50, len(mask)).astype(np.int32),
        action_mask=np.array(mask),
        rollout_logprobs=-rng.random(num_actions).astype(np.float32),
        weight_version=np.zeros(num_actions, dtype=np.int32),
        turns=tuple(spans),
        **kwargs,
    )


def batch_of_three() -> list[Trajectory]:
    return [
        make(Uid(0, 5, 1), 2, [(3, 0.5), (2, 1.0)], gap=2, reward=2.0, rewards={"a": 2.0}),
        make(Uid(0, 1, 0), 1, [(1, 0.0)], reward=-1.0, metrics={"len": 1.0}),
        make(Uid(0, 5, 0), 3, [(4, 0.25)], reward=0.5, rewards={"a": 0.5, "b": 1.0}),
    ]


def test_columns_are_ordered_by_uid():
    columns = TrajectoryColumns.from_trajectories(batch_of_three())

    assert list(columns.uids()) == [Uid(0, 1, 0), Uid(0, 5, 0), Uid(0, 5, 1)]


def test_columns_hold_every_token_and_action():
    trajectories = batch_of_three()

    columns = TrajectoryColumns.from_trajectories(trajectories)

    for row, trajectory in enumerate(sorted(trajectories, key=lambda t: t.uid)):
        np.testing.assert_array_equal(columns.tokens_of(row), trajectory.token_ids)
        np.testing.assert_array_equal(
            columns.actions_of(row), trajectory.token_ids[trajectory.action_mask]
        )


def test_turn_rewards_stand_on_the_last_action_of_their_turn():
    columns = TrajectoryColumns.from_trajectories([batch_of_three()[0]])

    # turn 0 has 3 actions and earned 0.5, turn 1 has 2 and earned 1.0; the gap between them has no column
    np.testing.assert_array_equal(columns.turn_rewards, [0, 0, 0.5, 0, 1.0])
    np.testing.assert_array_equal(columns.action_turn, [0, 0, 0, 1, 1])


def test_total_reward_adds_episode_and_turn_rewards():
    columns = TrajectoryColumns.from_trajectories(batch_of_three())

    np.testing.assert_allclose(columns.total_reward, [-1.0, 0.75, 3.5])


def test_groups_and_episodes_are_dense_indices():
    rows = [make(Uid(0, 7, s, g), 1, [(2, 0.0)]) for s in (0, 1) for g in (0, 1)]
    rows.append(make(Uid(1, 7, 0, 0), 1, [(2, 0.0)]))

    columns = TrajectoryColumns.from_trajectories(rows)

    np.testing.assert_array_equal(columns.group, [0, 0, 0, 0, 1])
    np.testing.assert_array_equal(columns.episode, [0, 0, 1, 1, 2])


def test_missing_names_become_nan():
    columns = TrajectoryColumns.from_trajectories(batch_of_three())

    np.testing.assert_array_equal(columns.rewards["a"], np.float32([np.nan, 0.5, 2.0]))
    np.testing.assert_array_equal(columns.rewards["b"], np.float32([np.nan, 1.0, np.nan]))


def batch_of_long_rows() -> list[Trajectory]:
    """Long enough to be copied row by row, in place of by an index."""
    return [make(Uid(0, n), 1 + n, [(70 + 30 * n, 1.0)]) for n in range(3)]


@pytest.mark.parametrize("rows", [[2, 0], [1], [0, 1, 2], [2, 2], []])
@pytest.mark.parametrize("make_batch", [batch_of_three, batch_of_long_rows])
def test_select_equals_packing_the_chosen_rows_one_by_one(rows, make_batch):
    columns = TrajectoryColumns.from_trajectories(make_batch())

    chosen = columns.select(np.array(rows, dtype=np.int64))

    assert len(chosen) == len(rows)
    for new, old in enumerate(rows):
        np.testing.assert_array_equal(chosen.tokens_of(new), columns.tokens_of(old))
        span = slice(*chosen.action_offsets[new : new + 2])
        original = slice(*columns.action_offsets[old : old + 2])
        np.testing.assert_array_equal(
            chosen.rollout_logprobs[span], columns.rollout_logprobs[original]
        )


def test_concatenating_parts_equals_packing_all_at_once():
    trajectories = batch_of_three()
    parts = [TrajectoryColumns.from_trajectories([t]) for t in trajectories]

    joined = TrajectoryColumns.concatenate(parts)

    whole = TrajectoryColumns.from_trajectories(trajectories)
    for name in whole.__dataclass_fields__:
        expected, actual = getattr(whole, name), getattr(joined, name)
        if isinstance(expected, dict):
            assert expected.keys() == actual.keys()
            for key in expected:
                np.testing.assert_array_equal(actual[key], expected[key])
        else:
            np.testing.assert_array_equal(actual, expected)


def test_two_rows_with_one_uid_are_refused():
    row = batch_of_three()[0]

    with pytest.raises(ValueError, match="share a uid"):
        TrajectoryColumns.from_trajectories([row, row])


def test_a_last_turn_that_hit_the_limit_makes_the_trajectory_truncated():
    whole = batch_of_three()[1]
    cut = Trajectory(
        **{name: getattr(whole, name) for name in whole.__dataclass_fields__ if name != "turns"},
        turns=(Turn(start=1, end=2, stop=Stop.LENGTH),),
    )

    assert cut.truncated
    assert not whole.truncated


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"action_mask": np.array([True, True])}, "first token is an action"),
        ({"action_mask": np.array([False])}, "a mask of 1"),
        ({"rollout_logprobs": np.zeros(3, np.float32)}, "3 rollout_logprobs"),
        ({"turns": ()}, "do not cover"),
        ({"turns": (Turn(start=1, end=1),)}, "is empty"),
        ({"turns": (Turn(start=1, end=9),)}, "outside"),
    ],
)
def test_an_impossible_trajectory_is_refused_with_its_uid(change, message):
    good = {
        "uid": Uid(0, 3),
        "token_ids": np.array([1, 2], np.int32),
        "action_mask": np.array([False, True]),
        "rollout_logprobs": np.zeros(1, np.float32),
        "weight_version": np.zeros(1, np.int32),
        "turns": (Turn(start=1, end=2),),
    }

    with pytest.raises(ValueError, match=message) as caught:
        Trajectory(**good | change)

    assert "0.3.0.0" in str(caught.value)


def test_uid_survives_text():
    assert Uid.parse(str(Uid(-1, 12, 3, 4))) == Uid(-1, 12, 3, 4)
