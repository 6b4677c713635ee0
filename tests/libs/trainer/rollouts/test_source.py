"""One step's rollouts: scoring, dropping, filtering and refilling, with the books balancing each time."""

import asyncio
from contextlib import closing

import numpy as np
import pytest

from rlhf_core.contracts import (
    Metric,
    RolloutContext,
    SamplingParams,
    Task,
    Trajectory,
    Uid,
)
from rlhf_core.errors import RolloutError
from rlhf_core.plugins import load
from rlhf_core.rng import seed_of
from rlhf_guard.rewards.panel import SampleScore
from rlhf_testing.errors import has_code
from rlhf_testing.fakes import FakeEngine, FakeRenderer
from rlhf_trainer.durable.records import Ledger, replay
from rlhf_trainer.rollouts.episodes import EpisodeRunner
from rlhf_trainer.rollouts.prompts import Cursor
from rlhf_trainer.rollouts.source import RolloutSource


class Tasks:
    """Ten prompts, in order."""

    def __len__(self):
        return 10

    def order(self, epoch, seed):
        return np.arange(10)

    def task(self, index, epoch):
        return Task(uid=Uid(epoch, index), prompt_ids=(5, 6), row={"index": index})


async def by_prompt(requests):
    """The reward is the prompt's number plus a tenth of the sample's."""
    scores = []
    for request in requests:
        uid = Uid.parse(request.uid)
        scores.append(SampleScore(reward=uid.prompt + uid.sample / 10, rewards={"n": uid.prompt}))
    return scores


def single_turn():
    return load("").get("rlhf_rollout_executors", "single_turn").build()


def episodes(score=by_prompt, samples=3, with_greedy=False, script=None, executor=None):
    context = RolloutContext(
        engine=FakeEngine(script),
        renderer=FakeRenderer(),
        sampling=SamplingParams(max_new_tokens=4),
        max_length=16,
        seed=lambda sample, turn: 0,
    )
    return EpisodeRunner(
        executor=executor or single_turn(),
        context=context,
        seed_of=lambda task, sample, turn: seed_of(0, "sample", task.uid.prompt, sample, turn),
        score=score,
        samples_per_prompt=samples,
        with_greedy=with_greedy,
    )


def source(*args, filters=(), shapers=(), **kwargs):
    return RolloutSource(episodes(*args, **kwargs), filters=filters, shapers=shapers)


@pytest.fixture
def take(tmp_path):
    def run(source, num_prompts=4, max_refills=4, epochs=None):
        cursor = Cursor(Tasks(), 0, epochs=epochs)
        with closing(Ledger(tmp_path / "ledger.jsonl")) as ledger:
            rollouts = asyncio.run(
                source.take(
                    1, cursor, num_prompts, max_refills=max_refills, version=0, ledger=ledger
                )
            )
        assert replay(tmp_path / "ledger.jsonl").unsettled() == []
        return rollouts

    return run


def prompts(rollouts):
    return sorted({uid.prompt for uid in rollouts.batch.uids()})


def test_a_batch_has_every_sample_of_every_prompt_in_order(take):
    batch = take(source()).batch

    assert list(batch.uids()) == [Uid(0, p, s) for p in range(4) for s in range(3)]
    np.testing.assert_allclose(batch.reward, [p + s / 10 for p in range(4) for s in range(3)])


def test_the_same_seeds_give_the_same_tokens_whatever_runs_beside(take, tmp_path):
    alone, together = take(source(), num_prompts=1).batch, take(source(), num_prompts=4).batch

    np.testing.assert_array_equal(alone.token_ids, together.select(np.arange(3)).token_ids)


def failing(prompt):
    async def score(requests):
        scores = await by_prompt(requests)
        for index, request in enumerate(requests):
            if request.uid == f"0.{prompt}.1.0":
                scores[index] = SampleScore(reward=None, dropped="n_failed")
        return scores

    return score


def test_one_unscored_sample_drops_its_group_and_no_other(take):
    without = take(source(failing(2)))
    whole = take(source()).batch

    assert prompts(without) == [0, 1, 3]
    assert without.metrics["filter/dropped_groups/n_failed"].value() == 1
    kept = np.array([row for row, uid in enumerate(whole.uids()) if uid.prompt != 2])
    expected = whole.select(kept)
    for name in ("token_ids", "rollout_logprobs", "reward"):
        np.testing.assert_array_equal(getattr(without.batch, name), getattr(expected, name))


def test_advantages_of_other_groups_are_those_of_a_run_without_the_dropped_one(take):
    from rlhf_trainer.learning.advantages import advantages
    from rlhf_trainer.learning.model_outputs import ModelOutputs

    estimator = load("").get("rlhf_advantage_estimators", "reinforce_baseline").build()
    dropped = take(source(failing(2))).batch
    whole = take(source()).batch
    without = whole.select(np.flatnonzero(whole.uid[:, 1] != 2))

    actual, _ = advantages(dropped, ModelOutputs(columns={}), estimator, None)
    expected, _ = advantages(without, ModelOutputs(columns={}), estimator, None)

    np.testing.assert_array_equal(actual["advantages"], expected["advantages"])


class KeepEven:
    def keep(self, group, info):
        return None if group.uid[0, 1] % 2 == 0 else "odd"


def test_filtered_groups_are_replaced_by_later_prompts(take):
    rollouts = take(source(filters=[KeepEven()]))

    # 0..3 keep 0, 2; two more are drawn: 4, 5 keep 4; one more: 6
    assert prompts(rollouts) == [0, 2, 4, 6]
    assert rollouts.metrics["filter/dropped_groups/odd"].value() == 3
    assert rollouts.metrics["filter/refills"].value() == 2


def test_refills_are_bounded(take):
    rollouts = take(source(filters=[KeepEven()]), max_refills=1)

    assert prompts(rollouts) == [0, 2, 4]


class KeepNothing:
    def keep(self, group, info):
        return "all"


def test_a_batch_of_which_nothing_is_kept_is_defined(take):
    rollouts = take(source(filters=[KeepNothing()]), max_refills=1)

    assert rollouts.batch is None
    assert rollouts.metrics["filter/dropped_groups/all"].value() == 8


def test_the_end_of_the_data_ends_the_refills(take):
    rollouts = take(source(filters=[KeepNothing()]), max_refills=99, epochs=1)

    assert rollouts.metrics["filter/dropped_groups/all"].value() == 10


class Doubled:
    def shape(self, batch, info):
        import dataclasses

        return dataclasses.replace(batch, reward=batch.reward * 2), {"shaped": Metric(1.0)}

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


def test_what_a_judge_drops_is_kept_beside_the_batch_and_is_dropped_in_the_books(take):
    judge = KeepEven()
    one = RolloutSource(episodes(), filters=[judge], judges=[judge])

    rollouts = take(one, max_refills=1)

    assert prompts(rollouts) == [0, 2, 4]
    assert sorted({uid.prompt for uid in rollouts.unjudged.uids()}) == [1, 3, 5]
    whole, counts = rollouts.to_learn(trains_unjudged=True)
    assert [uid.prompt % 2 == 0 for uid in whole.uids()] == counts.tolist()
    assert rollouts.to_learn(trains_unjudged=False)[0] is rollouts.batch
    assert take(source(filters=[KeepEven()]), max_refills=1).unjudged is None


def test_of_a_step_that_lost_all_groups_either_the_dropped_rows_or_no_rows_are_learned_from(take):
    judge = KeepNothing()
    rollouts = take(RolloutSource(episodes(), filters=[judge], judges=[judge]), max_refills=0)

    rows, counts = rollouts.to_learn(trains_unjudged=True)
    none, nothing = rollouts.to_learn(trains_unjudged=False)

    assert (len(rows), counts.any(), len(none), len(nothing)) == (12, False, 0, 0)


def test_shapers_change_rewards_before_filters_see_them(take):
    class AtLeastThree:
        def keep(self, group, info):
            return None if group.reward.min() >= 3 else "small"

    rollouts = take(source(shapers=[Doubled()], filters=[AtLeastThree()]), max_refills=0)

    # doubled rewards of prompts 0..3 start at 0, 2, 4, 6
    assert prompts(rollouts) == [2, 3]
    assert rollouts.metrics["shaped"].value() == 1.0
    # Prompts 2 and 3 with three samples each, which get 0, 0.1 and 0.2 on top: 2.6 on average, and twice that.
    assert rollouts.metrics["reward/mean"].value() == pytest.approx(5.2)
    assert rollouts.metrics["rollout/unshaped_reward"].value() == pytest.approx(2.6)


def test_rewards_see_prompt_and_response_apart(take):
    seen = []

    async def score(requests):
        seen.extend(requests)
        return await by_prompt(requests)

    take(source(score), num_prompts=1)

    renderer = FakeRenderer()
    for request in seen:
        start = request.turns[0].start
        assert request.prompt == renderer.decode(request.token_ids[:start])
        assert request.response == renderer.decode(request.token_ids[start:])
        assert request.row == {"index": 0}


def test_an_error_of_the_executor_reaches_the_caller_as_it_is(take):
    class Broken:
        async def run(self, task, samples, context):
            raise RolloutError(f"{task.uid}: broken")

    with pytest.raises(
        RolloutError, match=r"0\.\d\.0\.0: broken", check=has_code("rollout/failed")
    ):
        take(source(executor=Broken()))


def test_an_executor_that_loses_a_sample_is_refused(take):
    class Lossy:
        async def run(self, task, samples, context):
            return (await single_turn().run(task, samples, context))[:-1]

    with pytest.raises(
        RolloutError, match="expected 3 of them", check=has_code("rollout/wrong-episodes")
    ):
        take(source(executor=Lossy()))


class Leaving:
    """Plays with ``single_turn``, and leaves out the episodes that ``lost`` names by prompt."""

    def __init__(self, lost):
        self.lost = lost

    async def run(self, task, samples, context):
        gone = [sample for sample in samples if sample in self.lost.get(task.uid.prompt, ())]
        for sample in gone:
            context.drop(task.uid._replace(sample=sample), "died")
        kept = [sample for sample in samples if sample not in gone]
        return await single_turn().run(task, kept, context) if kept else []


def test_an_episode_that_is_left_out_costs_itself_alone(take):
    rollouts = take(source(executor=Leaving({1: (0, 2), 2: (1,)})))

    kept = [(uid.prompt, uid.sample) for uid in rollouts.batch.uids()]
    assert kept == [(0, 0), (0, 1), (0, 2), (1, 1), (2, 0), (2, 2), (3, 0), (3, 1), (3, 2)]
    assert rollouts.metrics["filter/dropped_episodes/died"].value() == 3


def test_a_group_of_which_no_episode_is_left_is_dropped_and_not_refilled(take):
    rollouts = take(source(executor=Leaving({1: range(3), 3: (0,)})))

    assert prompts(rollouts) == [0, 2, 3]
    assert rollouts.metrics["filter/dropped_groups/died"].value() == 1
    assert rollouts.metrics["filter/dropped_episodes/died"].value() == 1


def test_a_group_that_a_reward_drops_after_episodes_were_left_out_balances(take):
    """The ledger of ``take`` has to: one episode died, and the two others could not be scored."""
    rollouts = take(source(failing(1), executor=Leaving({1: (0,)})))

    assert prompts(rollouts) == [0, 2, 3]
    assert rollouts.metrics["filter/dropped_groups/n_failed"].value() == 1
    assert rollouts.metrics["filter/dropped_episodes/died"].value() == 1


def test_a_greedy_episode_that_is_left_out_drops_its_group(take):
    """Nothing is left to compare the others with. Sample 3 is the greedy one."""
    rollouts = take(source(by_length, with_greedy=True, executor=Leaving({2: (3,), 0: (1,)})))

    assert prompts(rollouts) == [0, 1, 3]
    assert rollouts.metrics["filter/dropped_groups/died"].value() == 1


async def by_length(requests):
    """A greedy episode is told apart by what the engine writes at temperature 0."""
    return [
        SampleScore(reward=float(len(request.response)), rewards={"n": 0.0}) for request in requests
    ]


def greedy_writes_four(request, index):
    return "abcd" if request.sampling.temperature == 0 else "ab"


def test_a_greedy_episode_gives_every_sample_its_reward_and_is_not_trained_on(take):
    batch = take(source(by_length, with_greedy=True, script=greedy_writes_four)).batch

    assert list(batch.uids()) == [Uid(0, p, s) for p in range(4) for s in range(3)]
    np.testing.assert_array_equal(batch.reward, np.full(12, 2.0))
    np.testing.assert_array_equal(batch.metrics["greedy_reward"], np.full(12, 4.0))


def test_a_greedy_episode_that_cannot_be_scored_drops_its_group(take):
    async def without_the_greedy_one_of_2(requests):
        return [
            SampleScore(reward=None, dropped="n_failed")
            if request.uid == "0.2.3.0"
            else SampleScore(reward=1.0)
            for request in requests
        ]

    assert prompts(take(source(without_the_greedy_one_of_2, with_greedy=True))) == [0, 1, 3]


def test_shapers_and_filters_know_under_which_conditions_a_batch_was_sampled(take):
    seen = []

    class Watching:
        def keep(self, group, info):
            seen.append(info)

    take(source(filters=[Watching()]), num_prompts=1)

    (info,) = seen
    assert (info.step, info.version, info.max_new_tokens, info.max_length) == (1, 0, 4, 16)


def test_a_segment_without_actions_is_refused():
    class Silent:
        async def run(self, task, samples, context):
            nothing = np.zeros(0)
            return [
                Trajectory(
                    uid=task.uid._replace(sample=sample),
                    token_ids=np.array([5, 6], np.int32),
                    action_mask=np.zeros(2, bool),
                    rollout_logprobs=nothing.astype(np.float32),
                    weight_version=nothing.astype(np.int32),
                    turns=(),
                )
                for sample in samples
            ]

    with pytest.raises(
        RolloutError,
        match=r"0\.3\.0\.0 without a single action token",
        check=has_code("rollout/no-action-token"),
    ):
        asyncio.run(episodes(executor=Silent()).play(Tasks().task(3, 0)))
