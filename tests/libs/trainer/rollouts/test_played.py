"""Groups between executor and rewards: each episode is scored once, and episodes that were left out are counted."""

from dataclasses import replace

import pytest
from tests.core.conftest import trajectory

from rlhf_core import RolloutError
from rlhf_core.contracts import Task, Uid
from rlhf_guard.rewards.panel import SampleScore
from rlhf_testing.errors import has_code
from rlhf_testing.fakes import FakeRenderer
from rlhf_trainer.rollouts.episodes import EpisodeRequests, PlayedGroup, check_episodes, rewarded

TASK = Task(uid=Uid(0, 3), row={"answer": 7})


def segment(sample, number, text="pAA", **changes):
    return replace(trajectory(Uid(0, 3, sample, number), text), **changes)


def group(*rows, left_out=None):
    return PlayedGroup(task=TASK, trajectories=rows, left_out=left_out or {})


def test_an_episode_is_scored_by_the_segment_in_which_it_ended():
    """A caller that went on after its sub-agent: the first segment is the one that ended last."""
    played = group(
        segment(0, 0, "pAAeA"), segment(0, 1, "qAA", is_final=False), segment(1, 0, "pAAAA")
    )

    requests = EpisodeRequests([played], FakeRenderer())

    assert [request.uid for request in requests] == ["0.3.0.0", "0.3.1.0"]
    assert [len(request.token_ids) for request in requests] == [5, 5]
    assert all(request.row == {"answer": 7} for request in requests)


class Decodings(FakeRenderer):
    """Notes what was decoded."""

    def __init__(self):
        super().__init__()
        self.sizes = []

    def decode_batch(self, rows, *, skip_special_tokens=False):
        self.sizes.append(len(rows))
        return super().decode_batch(rows, skip_special_tokens=skip_special_tokens)


def test_a_slice_makes_its_requests_and_no_others_and_a_prompt_is_decoded_once():
    renderer = Decodings()
    requests = EpisodeRequests([group(*(segment(n, 0) for n in range(5)))], renderer)

    first = requests[0:2]
    assert renderer.sizes == [1, 2]
    assert requests[1:2] == [first[1]]
    assert renderer.sizes == [1, 2]
    second = requests[2:4]

    assert renderer.sizes == [1, 2, 2]
    assert [one.uid for one in requests] == [f"0.3.{n}.0" for n in range(5)]
    assert renderer.sizes == [1, 2, 2, 1]
    assert list(requests)[:4] == [*first, *second]
    assert len({one.prompt for one in requests}) == 1


@pytest.mark.parametrize(
    "index", [slice(None), slice(3, None), slice(-2, None), slice(None, None, -2), slice(9, 12)]
)
def test_requests_are_read_like_a_list(index):
    def requests():
        return EpisodeRequests([group(*(segment(n, 0) for n in range(5)))], FakeRenderer())

    everything = list(requests())

    assert requests()[index] == everything[index]
    assert requests()[-1] == everything[-1]
    assert len(requests()) == 5
    with pytest.raises(IndexError):
        requests()[5]


def test_of_segments_that_are_all_final_the_last_is_scored():
    """An executor that says nothing about it."""
    played = group(segment(0, 0), segment(0, 1), segment(0, 2))

    assert [str(one.uid) for one in played.scored] == ["0.3.0.2"]


def test_the_reward_of_an_episode_is_that_of_all_its_segments():
    """Turn rewards of other segments, which an executor gives as reward, stay; parts stand where they were given."""
    played = group(
        segment(0, 0, reward=0.25, rewards={"env": 0.25}, is_final=False, metrics={"turns": 2.0}),
        segment(0, 1, reward=0.5, rewards={"env": 0.25}),
        segment(1, 0),
    )
    scores = [
        SampleScore(
            reward=1.0, rewards={"exact": 2.0}, step_rewards=((1, 0.5),), metrics={"exact/n": 3.0}
        ),
        SampleScore(reward=4.0, rewards={"exact": 8.0}),
    ]

    first, second, other = rewarded(played, scores)

    assert [first.reward, second.reward, other.reward] == [1.25, 1.5, 4.0]
    assert first.rewards == second.rewards == {"env": 0.25, "exact": 2.0}
    assert (first.step_rewards, second.step_rewards) == ((), ((1, 0.5),))
    assert first.metrics == {"turns": 2.0, "exact/n": 3.0}
    assert other.rewards == {"exact": 8.0}


def test_two_rewards_of_one_name_are_refused():
    with pytest.raises(
        RolloutError,
        match=r"0\.3\.0\.0: both .* give a reward named 'exact'",
        check=has_code("reward/name-taken"),
    ):
        rewarded(
            group(segment(0, 0, rewards={"exact": 1.0})),
            [SampleScore(reward=1.0, rewards={"exact": 1.0})],
        )


def test_episodes_that_were_left_out_are_counted_by_reason_among_those_of_the_batch():
    played = group(segment(0, 0), left_out={1: "died", 2: "died", 3: "slow", 9: "died"})

    assert played.lost(range(4)) == {"died": 2, "slow": 1}


@pytest.mark.parametrize(
    ("samples", "left_out"), [((0, 1), (1,)), ((0,), ()), ((0, 1, 2), ()), ((0,), (2,))]
)
def test_every_episode_is_returned_or_left_out_and_no_other_is(samples, left_out):
    """Two episodes were asked for."""
    rows = [segment(sample, 0) for sample in samples]
    gone = {Uid(0, 3, sample): "died" for sample in left_out}

    with pytest.raises(
        RolloutError,
        match="expected 2 of them in one or the other",
        check=has_code("rollout/wrong-episodes"),
    ):
        check_episodes(TASK, rows, range(2), gone)


def test_an_episode_that_was_left_out_is_not_missed():
    check_episodes(TASK, [segment(1, 0), segment(1, 1)], range(2), {Uid(0, 3, 0): "died"})
