"""Budgets of tokens and seconds, rewards with names, and what an environment may ask of a turn."""

import asyncio

import pytest
from tests.deadlines import HANG_S

from rlhf_core import RolloutError
from rlhf_core.contracts import (
    EpisodeEnd,
    Observation,
    SamplingParams,
    StepResult,
    Stop,
    TurnSampling,
)
from rlhf_plugin_agents.budgets import limited
from rlhf_plugin_agents.config import MultiTurnConfig
from rlhf_plugin_agents.multi_turn import MultiTurn
from rlhf_testing.errors import has_code
from rlhf_testing.fakes import FakeEngine


def run(task, samples, context, **config):
    async def bounded():
        async with asyncio.timeout(HANG_S):
            return await MultiTurn(MultiTurnConfig(**config)).run(task, samples, context)

    return asyncio.run(bounded())


def end_of(trajectory):
    (name,) = [end for end in EpisodeEnd if trajectory.metrics[f"end/{end}"]]
    return name


@pytest.mark.parametrize("budget", range(1, 10))
def test_all_turns_together_write_no_more_than_the_episodes_tokens(stage, task, counting, budget):
    """Three turns of "ab" and end-of-sequence: 9 tokens are needed."""
    stage.engine = FakeEngine(lambda request, index: "ab")

    (one,) = run(task, [0], stage.context(counting), max_episode_tokens=budget)

    assert one.action_mask.sum() == budget
    assert end_of(one) == ("finished" if budget > 6 else "context")
    # Cut within the third turn the environment still ends the episode; its turn says that it was cut.
    assert one.truncated == (budget < 9)


def test_a_cut_turn_may_end_the_episode(stage, task, counting):
    stage.engine = FakeEngine(lambda request, index: "x" * 50)

    (one,) = run(task, [0], stage.context(counting, max_new_tokens=5), end_at_cut_turn=True)

    assert (len(one.turns), one.truncated, end_of(one)) == (1, True, "length")
    assert stage.made[0].actions == []


class _Slow(FakeEngine):
    """Answers the first turn at once, and the second never."""

    async def generate(self, request):
        if request.turn:
            await asyncio.Event().wait()
        return await super().generate(request)


@pytest.mark.parametrize("budget", ["turn_timeout_s", "episode_timeout_s"])
def test_an_episode_that_runs_out_of_time_keeps_its_turns(stage, task, counting, budget):
    stage.engine = _Slow()

    (one,) = run(task, [0], stage.context(counting), **{budget: 1.0})

    assert (len(one.turns), end_of(one), one.truncated) == (1, "timeout", False)
    assert stage.made[0].closed == 1


def test_a_turn_whose_environment_is_slow_counts_without_its_reward(stage, task, counting):
    class Slow(counting):
        async def step(self, action):
            if action.turn:
                await asyncio.Event().wait()
            return await super().step(action)

    (one,) = run(task, [0], stage.context(Slow), turn_timeout_s=1.0)

    assert (len(one.turns), one.total_reward, end_of(one)) == (2, 0.0, "timeout")


def test_an_episode_without_a_turn_in_time_follows_the_policy_of_errors(stage, task, counting):
    class Slow(counting):
        async def reset(self, task, seed):
            await asyncio.Event().wait()

    with pytest.raises(
        RolloutError,
        match=r"0\.3\.0\.0: the policy had no turn within 1 s \(--",
        check=has_code("rollout/failed"),
    ):
        run(task, [0], stage.context(Slow), episode_timeout_s=1.0)
    assert run(task, [0], stage.context(Slow), episode_timeout_s=1.0, on_error="value") == []
    assert list(stage.dropped.values()) == ["timeout"]


def test_named_rewards_of_turns_add_up_and_are_metrics(stage, task, counting):
    class Named(counting):
        async def step(self, action):
            result = await super().step(action)  # reward 0, 1, 2
            named = {"right": 0.5, "style": 0.25 * action.turn}
            return StepResult(reward=result.reward, rewards=named, done=result.done)

    (one,) = run(task, [0], stage.context(Named))

    assert [turn.reward for turn in one.turns] == [0.5, 1.75, 3.0]
    assert one.metrics["env/reward/right"] == 1.5
    assert one.metrics["env/reward/style"] == 0.75
    assert one.reward is None


class Judging:
    """Mixed into an environment: judges the whole episode."""

    async def episode_rewards(self):
        return {"solved": 1.0, "brief": -0.25 * len(self.actions)}


@pytest.mark.parametrize(("max_turns", "reward"), [(3, 0.25), (2, 0.5)])
def test_rewards_of_the_episode_stand_beside_those_of_turns(
    stage, task, counting, max_turns, reward
):
    """Also where a limit ended it. Turns earn 0 + 1 + 2."""
    judged = type("Judged", (Judging, counting), {})

    (one,) = run(task, [0], stage.context(judged), max_turns=max_turns)

    assert one.reward == reward
    assert one.rewards == {"solved": 1.0, "brief": -0.25 * max_turns}
    assert one.total_reward == reward + sum(range(max_turns))


def test_a_judgement_that_is_no_number_is_named(stage, task, counting):
    class Bad(counting):
        async def episode_rewards(self):
            return {"solved": "yes"}

    with pytest.raises(
        RolloutError,
        match=r"episode_rewards of.*solved = 'yes'",
        check=has_code("environment/not-a-number"),
    ):
        run(task, [0], stage.context(Bad))


def test_an_environment_may_ask_for_shorter_turns_and_other_stop_strings(stage, task, counting):
    asked = iter([TurnSampling(max_new_tokens=2), TurnSampling(stop=("c",)), None])
    stage.engine = FakeEngine(lambda request, index: "abcd")

    def answer(action):
        return Observation(text="?", sampling=next(asked, None))

    (one,) = run(
        task,
        [0],
        stage.context(lambda: counting(4, answer=answer), max_new_tokens=9, stop=("d",)),
    )

    written = [action.text for action in stage.made[0].actions]
    assert written == ["abcd", "ab", "abc", "abcd"]
    assert [turn.stop for turn in one.turns] == [
        Stop.STRING,
        Stop.LENGTH,
        Stop.STRING,
        Stop.STRING,
    ]


def test_the_runs_limits_are_never_exceeded():
    sampling = SamplingParams(max_new_tokens=8, min_new_tokens=3, stop=("d",))

    assert limited(sampling, 5).max_new_tokens == 5
    assert limited(sampling, 50, TurnSampling(max_new_tokens=100)).max_new_tokens == 8
    short = limited(sampling, 50, TurnSampling(max_new_tokens=2))
    assert (short.max_new_tokens, short.min_new_tokens, short.stop) == (2, 2, ("d",))
    assert limited(sampling, 50, TurnSampling(stop=())).stop == ()


@pytest.mark.parametrize("wrong", [{"max_new_tokens": 0}, {"stop": ("",)}, {"stop": (3,)}])
def test_wishes_that_cannot_be_are_refused(wrong):
    with pytest.raises(ValueError, match="expected"):
        TurnSampling(**wrong)


def test_an_observation_that_could_never_fit_is_not_tokenized(stage, task, counting):
    """100 MB of text would hold up all episodes."""
    huge = Observation(text="x" * 100_000_000)

    (one,) = run(task, [0], stage.context(lambda: counting(5, answer=lambda _: huge)))

    assert (len(one.turns), one.truncated, end_of(one)) == (1, True, "context")
