"""Trajectories as columns: packing loses nothing, and tokens that are elsewhere are the same tokens."""

from dataclasses import replace

import numpy as np
import pytest

from rlhf_core.contracts import DeferredTokens, Trajectory, TrajectoryColumns, Turn, Uid


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


def assert_same(one: TrajectoryColumns, other: TrajectoryColumns) -> None:
    left, right = one.arrays(), other.arrays()
    assert left.keys() == right.keys()
    for name, column in left.items():
        np.testing.assert_array_equal(column, right[name], err_msg=name)


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
    np.testing.assert_array_equal(columns.action_rewards, [0, 0, 0.5, 0, 1.0])
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

    assert_same(
        TrajectoryColumns.concatenate(parts), TrajectoryColumns.from_trajectories(trajectories)
    )


def test_two_rows_with_one_uid_are_refused():
    row = batch_of_three()[0]

    with pytest.raises(ValueError, match="share a uid"):
        TrajectoryColumns.from_trajectories([row, row])


def test_versions_are_counted_from_each_rows_oldest():
    rows = batch_of_three()
    rows[0].weight_version[:] = [3, 3, 4, 6, 6]
    rows[1].weight_version[:] = [9]

    columns = TrajectoryColumns.from_trajectories(rows)  # ordered 1, 2, 0

    np.testing.assert_array_equal(columns.oldest_version, [9, 0, 3])
    np.testing.assert_array_equal(
        columns.version_counts, [[1, 0, 0, 0], [4, 0, 0, 0], [2, 1, 0, 2]]
    )
    one = columns.select(np.array([0]))
    both = TrajectoryColumns.concatenate([one, columns.select(np.array([2]))])
    np.testing.assert_array_equal(both.oldest_version, [3, 9][::-1])


class Elsewhere:
    """A block that counts how often it is read."""

    def __init__(self, columns):
        self.columns = columns
        self.reads = 0

    def read(self):
        self.reads += 1
        return self.columns


def deferred(batch: TrajectoryColumns) -> tuple[TrajectoryColumns, Elsewhere]:
    block = Elsewhere(batch.tokens)
    return replace(batch, tokens=DeferredTokens.whole(block, len(batch))), block


@pytest.fixture
def groups() -> list[TrajectoryColumns]:
    """Of prompts 2, 0 and 1; the last in memory, the others elsewhere."""
    return [
        TrajectoryColumns.from_trajectories(
            [make(Uid(0, prompt, n), 1 + n, [(3 + prompt, 0.5), (n + 1, 1.0)]) for n in range(4)]
        )
        for prompt in (2, 0, 1)
    ]


def test_tokens_elsewhere_are_the_same_tokens_after_joining_and_selecting(groups):
    away = [deferred(groups[0])[0], deferred(groups[1])[0], groups[2]]
    whole, same = TrajectoryColumns.concatenate(groups), TrajectoryColumns.concatenate(away)

    assert_same(same, whole)
    for rows in ([3, 1, 11, 0, 5], [7], [4, 4], []):
        rows = np.array(rows, dtype=np.int64)
        assert_same(same.select(rows), whole.select(rows))
        assert_same(same.select(rows).select(np.arange(len(rows))[::-1]), whole.select(rows[::-1]))


def test_what_has_one_entry_a_row_is_had_without_reading(groups):
    parts, blocks = zip(*map(deferred, groups), strict=True)

    batch = replace(TrajectoryColumns.concatenate(parts), reward=np.ones(12, np.float32))
    first = batch.select(np.flatnonzero(batch.group == 0))

    assert first.num_tokens.tolist() == groups[1].num_tokens.tolist()
    assert first.total_reward.tolist() == [2.5] * 4
    assert first.action_turn.tolist() == groups[1].action_turn.tolist()
    assert [block.reads for block in blocks] == [0, 0, 0]


def test_a_block_is_read_once_and_only_for_rows_that_are_left(groups):
    parts, blocks = zip(*map(deferred, groups), strict=True)
    batch = TrajectoryColumns.concatenate(parts)

    chosen = batch.select(np.array([5, 0]))  # of prompts 1 and 0
    assert chosen.token_ids.tolist() == [*batch.tokens_of(5), *batch.tokens_of(0)]
    assert chosen.action_mask.sum() == chosen.num_actions.sum()

    assert [block.reads for block in blocks] == [1, 2, 2]


def test_a_block_that_several_parts_are_rows_of_stays_one_and_is_read_once(groups):
    whole = TrajectoryColumns.concatenate(groups)
    shared = Elsewhere(whole.tokens)
    parts = []
    for prompt in (1, 2, 0):
        rows = np.arange(4 * prompt, 4 * prompt + 4)
        tokens = DeferredTokens(blocks=(shared,), block=np.zeros(4, np.int64), row=rows)
        parts.append(replace(whole.select(rows), tokens=tokens))

    joined = TrajectoryColumns.concatenate(parts)

    assert joined.tokens.blocks == (shared,)
    assert_same(joined, whole)
    assert shared.reads == 1


def in_steps() -> list[Trajectory]:
    """The first row has 5 actions in two turns with text between them, the others 1 and 4."""
    first, second, third = batch_of_three()
    return [
        replace(first, step_rewards=((1, 0.5), (3, 0.25), (3, 0.25))),
        second,
        replace(third, step_rewards=((3, 0.75),)),
    ]


def parts_of(columns: TrajectoryColumns) -> dict[tuple[int, ...], list[tuple[int, float]]]:
    """Each row's parts by its uid."""
    found: dict[tuple[int, ...], list[tuple[int, float]]] = {uid: [] for uid in columns.uids()}
    uids = list(columns.uids())
    steps = zip(
        columns.step_rows.tolist(),
        columns.step_actions.tolist(),
        columns.step_rewards.tolist(),
        strict=True,
    )
    for row, action, part in steps:
        found[uids[row]].append((action, part))
    return found


def test_parts_stay_with_their_rows_in_any_order_and_company():
    expected = {row.uid: list(row.step_rewards) for row in in_steps()}

    whole = TrajectoryColumns.from_trajectories(in_steps())
    apart = [TrajectoryColumns.from_trajectories([row]) for row in in_steps()]

    assert parts_of(whole) == expected
    assert_same(TrajectoryColumns.concatenate(apart), whole)
    for order in ([2, 0, 1], [1, 2], [0], []):
        chosen = whole.select(np.array(order, dtype=int))
        assert parts_of(chosen) == {uid: expected[uid] for uid in chosen.uids()}


def test_parts_are_of_the_reward_and_leave_the_rest_at_the_end():
    whole = TrajectoryColumns.from_trajectories(in_steps())

    # by uid: no parts of -1; 0.5 - 0.75; 2 - 1
    assert whole.reward_at_end.tolist() == [-1.0, -0.25, 1.0]
    bare = TrajectoryColumns.from_trajectories(batch_of_three())
    np.testing.assert_array_equal(whole.total_reward, bare.total_reward)


@pytest.mark.parametrize("action", [-1, 4])
def test_a_part_has_to_stand_on_an_action(action):
    row = batch_of_three()[2]  # 4 actions

    with pytest.raises(ValueError, match=f"a step reward at action {action}; there are 4 actions"):
        replace(row, step_rewards=((0, 1.0), (action, 1.0)))
