"""Generation that runs ahead of training: the bound on staleness, the books, and equality with running on-policy."""

import asyncio

import numpy as np
import pytest

from rlhf_trainer.rollouts.prompts import Cursor
from rlhf_trainer.rollouts.source import Ahead

CASES = [
    Ahead(max_staleness=k, in_flight_updates=swap and k > 0, spare_prompts=spare, concurrency=slots)
    for k in (0, 1, 3)
    for swap in (False, True)
    for spare in (0, 3)
    for slots in (None, 3)
    if k or not swap
]


@pytest.mark.parametrize("ahead", CASES, ids=str)
@pytest.mark.parametrize("seed", range(4))
def test_no_token_is_older_than_the_bound_and_the_books_balance(stepping, tmp_path, ahead, seed):
    trained, _, _ = stepping.run(tmp_path, ahead, seed=seed)

    assert all(staleness.min() >= 0 for staleness in trained.staleness)
    assert max(staleness.max() for staleness in trained.staleness) <= ahead.max_staleness
    assert all(len(stepping.keys(batch)) == stepping.PROMPTS for batch in trained.batches)


@pytest.mark.parametrize("ahead", [one for one in CASES if not one.spare_prompts], ids=str)
def test_without_oversampling_prompts_are_trained_in_their_order_and_none_is_dropped(
    stepping, tmp_path, ahead
):
    trained, balance, _ = stepping.run(tmp_path, ahead)

    tasks = Cursor(stepping.Tasks(), 0, epochs=None).take(8 * stepping.PROMPTS)
    drawn = [(task.uid.epoch, task.uid.prompt) for task in tasks]
    assert [stepping.keys(batch) for batch in trained.batches] == [
        sorted(drawn[i : i + stepping.PROMPTS]) for i in range(0, len(drawn), stepping.PROMPTS)
    ]
    assert not balance.dropped


def test_generation_does_run_ahead(stepping, tmp_path):
    """Guards the tests above against a bound that is kept by never using it."""
    trained, _, _ = stepping.run(tmp_path, Ahead(max_staleness=2, in_flight_updates=True))

    assert max(staleness.max() for staleness in trained.staleness) == 2


def test_without_in_flight_updates_a_prompt_is_of_one_version(stepping, tmp_path):
    trained, _, engine = stepping.run(tmp_path, Ahead(max_staleness=2))

    assert engine.paused == 0
    assert max(staleness.max() for staleness in trained.staleness) > 0
    for batch in trained.batches:
        for group in range(stepping.PROMPTS):
            rows = batch.select(np.flatnonzero(batch.group == group))
            assert len(set(rows.weight_version.tolist())) == 1


def test_in_flight_updates_leave_responses_of_several_versions(stepping, tmp_path):
    trained, _, engine = stepping.run(tmp_path, Ahead(max_staleness=2, in_flight_updates=True))

    assert engine.paused > 0
    mixed = [
        row
        for batch in trained.batches
        for row in range(len(batch))
        if len(set(batch.select(np.array([row])).weight_version.tolist())) > 1
    ]
    assert mixed


def test_oversampling_takes_what_is_complete_first(stepping, tmp_path):
    usual, _, _ = stepping.run(tmp_path, Ahead())
    first, balance, _ = stepping.run(tmp_path, Ahead(spare_prompts=4))

    assert all(metrics["filter/dropped_groups/stale"] == 4 for metrics in first.metrics)
    assert balance.dropped.total() == 8 * 4 * stepping.SAMPLES
    # What is slow is what is long here, and it is left out.
    longest = [max(batch.num_actions.max() for batch in one.batches) for one in (usual, first)]
    assert longest[1] < longest[0]


def test_what_is_left_over_is_served_later_while_it_is_fresh_enough(stepping, tmp_path):
    """With room within the bound, oversampling throws nothing away but what has been slow for as many steps."""
    trained, balance, _ = stepping.run(tmp_path, Ahead(max_staleness=3, spare_prompts=2), steps=20)

    assert balance.dropped.total() < 20 * stepping.SAMPLES
    assert balance.trained.total() == 20 * stepping.PROMPTS * stepping.SAMPLES
    assert max(staleness.max() for staleness in trained.staleness) > 0


class KeepEven:
    def keep(self, group, info):
        return None if group.uid[0, 1] % 2 == 0 else "odd"


@pytest.mark.parametrize("ahead", CASES, ids=str)
def test_filtered_prompts_are_replaced(stepping, tmp_path, ahead):
    trained, _, _ = stepping.run(tmp_path, ahead, filters=[KeepEven()])

    for batch, metrics in zip(trained.batches, trained.metrics, strict=True):
        assert all(prompt % 2 == 0 for _, prompt in stepping.keys(batch))
        # Four draws do not always find four even prompts; what was found and what was filtered adds up.
        assert len(stepping.keys(batch)) <= stepping.PROMPTS
        assert metrics["filter/refills"] <= 3
    assert np.mean([len(stepping.keys(batch)) for batch in trained.batches]) > 3


def same_columns(one, other):
    left, right = one.arrays(), other.arrays()
    assert left.keys() == right.keys()
    for name, column in left.items():
        np.testing.assert_array_equal(column, right[name], err_msg=name)


@pytest.mark.parametrize("slots", [1, 3, None])
def test_on_policy_the_pool_gives_what_one_prompt_after_the_other_gives(stepping, tmp_path, slots):
    """Against a loop that knows neither pool nor queue."""
    trained, _, _ = stepping.run(tmp_path, Ahead(concurrency=slots), steps=3)

    cursor, engine = Cursor(stepping.Tasks(), 0, epochs=None), stepping.SteppingEngine()
    episodes = stepping.make_episodes(engine, 0)
    for version, batch in enumerate(trained.batches):
        engine.version = version
        expected = []
        for task in cursor.take(stepping.PROMPTS):
            played = asyncio.run(episodes.play(task))
            (finished,) = asyncio.run(episodes.score([played]))
            expected.append(finished.batch)
        same_columns(batch, type(batch).concatenate(expected))


def test_staleness_is_reported_token_by_token(stepping, tmp_path):
    trained, _, _ = stepping.run(tmp_path, Ahead(max_staleness=2, in_flight_updates=True))

    for staleness, metrics in zip(trained.staleness, trained.metrics, strict=True):
        assert metrics["rollout/staleness_mean"] == pytest.approx(staleness.mean())
        assert metrics["rollout/staleness_max"] == staleness.max()
        shares = [metrics[f"rollout/staleness_{age}"] for age in range(3)]
        assert shares == pytest.approx([(staleness == age).mean() for age in range(3)])
    on_policy, _, _ = stepping.run(tmp_path, Ahead(), seed=1)
    assert not any("staleness" in name for name in on_policy.metrics[0])
