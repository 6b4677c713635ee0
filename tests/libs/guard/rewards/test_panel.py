import asyncio
import math
import os

import pytest

from rlhf_core import RewardError
from rlhf_guard.rewards.panel import RewardPanel
from rlhf_testing.errors import has_code


def score(selections, requests, times=1):
    """The scores of the last of ``times`` calls."""

    async def all_of_it():
        panel = RewardPanel(selections)
        await panel.start()
        try:
            for _ in range(times):
                scores = await panel.score(requests)
            return scores
        finally:
            await panel.close()

    return asyncio.run(all_of_it())


IN_THREAD = {"isolate": False}


def test_rewards_are_added_with_their_weights_and_kept_by_name(probe, requests_for):
    selections = [
        probe(name="first", weight=2.0, **IN_THREAD),
        probe(name="second", weight=-0.5, **IN_THREAD),
    ]

    scores = score(selections, requests_for([{}] * 5))

    # The probe scores the length of the response, which is the index: 2 i - 0.5 i.
    assert [one.reward for one in scores] == [0.0, 1.5, 3.0, 4.5, 6.0]
    assert scores[3].rewards == {"first": 3.0, "second": 3.0}
    assert {*scores[3].metrics} == {"first/pid", "second/pid"}
    assert scores[3].dropped is None


def test_each_isolated_reward_has_a_process_of_its_own(probe, requests_for, no_process_left):
    selections = [probe(name="first"), probe(name="second"), probe(name="third", **IN_THREAD)]

    (one,) = score(selections, requests_for([{}]))

    assert len({*one.metrics.values()}) == 3
    assert one.metrics["third/pid"] == os.getpid()


def test_no_requests_give_no_scores(probe):
    assert score([probe(**IN_THREAD)], []) == []


def test_scoring_a_batch_equals_scoring_one_by_one(probe, requests_for):
    requests = requests_for([{"bad": index == 2} for index in range(5)])
    selection = probe("returns_exceptions", on_error="value", error_value=-1.0, **IN_THREAD)

    assert score([selection], requests) == [score([selection], [one])[0] for one in requests]


@pytest.mark.parametrize("behavior", ["raises", "returns_exceptions", "too_short"])
def test_a_failure_stops_the_run_by_default_and_names_everything(probe, requests_for, behavior):
    requests = requests_for([{}, {}, {"bad": True}, {}])

    with pytest.raises(RewardError) as caught:
        score([probe(behavior, **IN_THREAD)], requests)

    text = str(caught.value)
    assert text.startswith(
        "reward probe (probe_rewards:probe, probe_rewards) could not score 0.2.0.0"
    )
    assert "--reward.probe.on_error to drop" in text
    expected = {
        "raises": "raised ZeroDivisionError: a sample is bad",
        "returns_exceptions": "raised ValueError: only this one",
        "too_short": "returned 0 results for 1 samples",
    }
    assert expected[behavior] in text
    if behavior == "raises":
        assert "probe_rewards.py:" in text
        assert 'in raises: raise ZeroDivisionError("a sample is bad")' in text


@pytest.mark.parametrize("behavior", ["raises", "returns_exceptions", "too_short"])
def test_with_drop_only_the_guilty_sample_is_dropped(probe, requests_for, behavior):
    requests = requests_for([{}, {}, {"bad": True}, {}])

    scores = score([probe(behavior, on_error="drop", **IN_THREAD)], requests)

    assert [one.dropped for one in scores] == [None, None, "probe_failed", None]
    assert [one.reward is None for one in scores] == [False, False, True, False]


@pytest.mark.parametrize("behavior", ["raises", "returns_exceptions", "too_short"])
def test_with_value_the_guilty_sample_gets_the_error_value(probe, requests_for, behavior):
    requests = requests_for([{}, {}, {"bad": True}, {}])
    selection = probe(behavior, on_error="value", error_value=-3.0, weight=2.0, **IN_THREAD)

    scores = score([selection], requests)

    assert scores[2].reward == -6.0
    assert scores[2].rewards == {"probe": -3.0}
    assert [one.metrics["probe/failed"] for one in scores] == [0.0, 0.0, 1.0, 0.0]


def test_a_sample_dropped_by_one_reward_is_dropped_whatever_the_others_say(probe, requests_for):
    selections = [
        probe(name="fine", **IN_THREAD),
        probe("raises", name="strict", on_error="drop", **IN_THREAD),
    ]

    scores = score(selections, requests_for([{}, {"bad": True}]))

    assert [one.dropped for one in scores] == [None, "strict_failed"]
    assert scores[1].reward is None
    assert scores[1].rewards == {"fine": 1.0}


@pytest.mark.parametrize("isolate", [False, True])
def test_rows_are_copies_for_every_sample(probe, requests_for, isolate):
    row = {"nested": {"list": []}}

    scores = score([probe("alters_rows", isolate=isolate)], requests_for([row] * 3), times=2)

    # Each sample sees an empty list, to which it adds one entry.
    assert [one.reward for one in scores] == [1.0, 1.0, 1.0]
    assert row == {"nested": {"list": []}}


def test_metrics_are_checked_and_what_is_not_reported_is_left_out(probe, requests_for):
    rows = [
        {"metrics": {"a": 1, "b": True, "c": None, "d": math.nan}},
        {"metrics": {"a": "one"}},
        {"metrics": {"a": math.inf}},
    ]
    selection = probe("echoes_metrics", on_error="value", **IN_THREAD)

    scores = score([selection], requests_for(rows))

    assert scores[0].metrics == {"probe/a": 1.0, "probe/b": 1.0, "probe/failed": 0.0}
    assert [one.metrics["probe/failed"] for one in scores] == [0.0, 1.0, 1.0]


@pytest.mark.parametrize("weight", [1e35, -1e35])
def test_a_sum_that_float32_could_not_hold_is_refused(probe, requests_for, weight):
    with pytest.raises(
        RewardError,
        match=r"returned 2; expected at most 1e\+35 after its weight",
        check=has_code("reward/wrong-answer"),
    ):
        score([probe(weight=weight, **IN_THREAD)], requests_for([{}] * 3))


@pytest.mark.parametrize("isolate", [False, True])
def test_a_reward_that_cannot_be_built_is_found_at_start(probe, isolate, no_process_left):
    panel = RewardPanel(
        [probe(name="fine", isolate=isolate), probe("cannot_be_built", isolate=isolate)]
    )

    with pytest.raises(
        RewardError,
        match="could not be built: it raised LookupError: no such thing",
        check=has_code("reward/not-started"),
    ):
        asyncio.run(panel.start())


def test_a_reward_that_starts_too_slowly_is_one_line_that_names_the_option(probe, no_process_left):
    panel = RewardPanel([probe(name="slow", start_timeout_s=0.01)])

    with pytest.raises(RewardError) as caught:
        asyncio.run(panel.start())

    assert str(caught.value).endswith(
        "did not start within 0.01 s; raise --reward.slow.start_timeout_s if it needs longer to load"
    )


def test_two_rewards_of_one_name_are_refused(probe):
    with pytest.raises(RewardError, match="probe, probe", check=has_code("reward/repeated-name")):
        RewardPanel([probe(), probe()])


def test_a_fatal_error_of_one_reward_leaves_none_running(probe, requests_for, no_process_left):
    """The row cannot be sent to a process, so that reward fails at once; the other one would sleep."""
    selections = [probe("sleeps", name="slow", timeout_s=100), probe(name="picky")]

    with pytest.raises(RewardError, check=has_code("reward/unsendable")):
        score(selections, requests_for([{"bad": True, "image": object()}]))


def test_closed_means_closed(probe, requests_for):
    async def use_after_close():
        panel = RewardPanel([probe()])
        await panel.start()
        await panel.close()
        await panel.score(requests_for([{}]))

    with pytest.raises(RewardError, check=has_code("reward/closed")):
        asyncio.run(use_after_close())


def test_parts_have_their_rewards_weight_and_a_whole_reward_has_none(probe, requests_for):
    selections = [
        probe("places", name="steps", weight=2.0, **IN_THREAD),
        probe(name="length", weight=10.0, **IN_THREAD),
        probe("places", name="more", weight=-1.0, **IN_THREAD),
    ]

    _, one = score(selections, requests_for([{}, {"parts": [[0, 0.25], [1, 0.75]]}]))

    # 2 * 1 + 10 * 1 - 1 * 1
    assert one.reward == 11.0
    assert one.step_rewards == ((0, 0.5), (1, 1.5), (0, -0.25), (1, -0.75))
    assert one.rewards == {"steps": 1.0, "length": 1.0, "more": 1.0}


def test_a_value_in_the_place_of_a_score_has_no_parts(probe, requests_for):
    selection = probe("places", on_error="value", error_value=-3.0, **IN_THREAD)

    (one,) = score([selection], requests_for([{"parts": [[5, 1.0]]}]))

    assert (one.reward, one.step_rewards) == (-3.0, ())
