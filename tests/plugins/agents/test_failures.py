"""What an environment that fails costs: the run, its own episode, or a reward; and nobody else anything."""

import asyncio
import logging

import numpy as np
import pytest
from tests.deadlines import HANG_S

from rlhf_core import DataError, RolloutError
from rlhf_core.contracts import EpisodeEnd, Observation, StepResult
from rlhf_plugin_agents.config import MultiTurnConfig
from rlhf_plugin_agents.multi_turn import SHOWN_FAILURES, MultiTurn
from rlhf_testing.errors import has_code


def run(task, samples, context, **config):
    async def bounded():
        async with asyncio.timeout(HANG_S):
            return await MultiTurn(MultiTurnConfig(**config)).run(task, samples, context)

    return asyncio.run(bounded())


def end_of(trajectory):
    (name,) = [end for end in EpisodeEnd if trajectory.metrics[f"end/{end}"]]
    return name


def failing(base, stage, which, *, call="step", turn=1, how=None):
    """Environments of which the ones with these numbers fail in a call, ``step`` from a turn on."""

    async def fail(self, *arguments):
        if stage.made.index(self) in which and (call != "step" or arguments[0].turn >= turn):
            if how is None:
                raise OSError("no such room")
            return await how()
        return await getattr(base, call)(self, *arguments)

    return type("FailingEnvironment", (base,), {call: fail})


def test_drop_leaves_out_the_episode_that_failed_and_no_other(stage, task, counting):
    whole = run(task, range(4), stage.context(counting))
    stage.made.clear()

    kept = run(task, range(4), stage.context(failing(counting, stage, {1, 2})), on_error="drop")

    assert [one.uid.sample for one in kept] == [0, 3]
    assert stage.dropped == {
        task.uid._replace(sample=1): "environment_failed",
        task.uid._replace(sample=2): "environment_failed",
    }
    for one in kept:
        np.testing.assert_array_equal(one.token_ids, whole[one.uid.sample].token_ids)
    assert [environment.closed for environment in stage.made] == [1] * 4


def test_value_keeps_the_turns_before_the_failure_and_rewards_the_last(stage, task, counting):
    """The environment fails in its answer to turn 1; turn 0 earned 0 and turn 1 gets -1."""
    (one,) = run(
        task,
        [0],
        stage.context(failing(counting, stage, {0})),
        on_error="value",
        error_reward=-1.0,
    )

    assert [turn.reward for turn in one.turns] == [0.0, -1.0]
    assert (one.total_reward, end_of(one)) == (-1.0, "environment_error")
    assert one.metrics["turns"] == 2.0
    assert stage.dropped == {}


@pytest.mark.parametrize("call", ["reset", "step"])
def test_value_leaves_out_an_episode_that_failed_before_its_first_turn(stage, task, counting, call):
    """There is nothing to put a reward on after reset; after the first step there is."""
    environment = failing(counting, stage, {0}, call=call, turn=0)

    kept = run(task, [0], stage.context(environment), on_error="value")

    assert len(kept) == (call == "step")
    assert list(stage.dropped.values()) == ["environment_failed"] * (call == "reset")


@pytest.mark.parametrize("policy", ["drop", "value"])
def test_a_first_observation_without_room_for_a_turn_costs_its_own_episode(
    stage, task, counting, policy
):
    """One page that is too long among many ends no run that is to go on."""

    async def long():
        return Observation(text="x" * 99)

    environment = failing(counting, stage, {1}, call="reset", how=long)

    kept = run(task, range(3), stage.context(environment, max_length=60), on_error=policy)

    assert [one.uid.sample for one in kept] == [0, 2]
    assert stage.dropped == {task.uid._replace(sample=1): "environment_failed"}


@pytest.mark.parametrize("policy", ["drop", "value"])
def test_a_failure_to_close_costs_nothing_where_the_run_goes_on(
    stage, task, counting, policy, caplog
):
    (one,) = run(
        task, [0], stage.context(failing(counting, stage, {0}, call="close")), on_error=policy
    )

    assert end_of(one) == "finished"
    assert (
        "close of FailingEnvironment raised OSError: no such room. The episode counts"
        in caplog.text
    )


async def _cancel_itself():
    raise asyncio.CancelledError


async def _exit():
    raise SystemExit(3)


async def _hang():
    await asyncio.Event().wait()


async def _nonsense():
    return {"reward": 1}


async def _bad_messages():
    return StepResult(observation=Observation(messages=("hello",)))


async def _bad_ids():
    return StepResult(observation=Observation(token_ids=(5, -1)))


async def _bad_text():
    return StepResult(observation=Observation(text=7))


async def _bad_rewards():
    return StepResult(rewards=[1.0])


async def _bad_observation():
    return StepResult(observation="hello")


async def _nan():
    return StepResult(rewards={"style": float("nan")})


async def _bytes_in_message():
    message = {"role": "user", "content": b"output"}
    return StepResult(observation=Observation(messages=[message]))


async def _ours():
    raise DataError("the table is empty", code="data/no-rows")


async def _too_much():
    return StepResult(rewards={"a": 9e34, "b": 9e34})


@pytest.mark.parametrize(
    ("how", "message", "code"),
    [
        (_cancel_itself, "step of FailingEnvironment raised CancelledError", "environment/raised"),
        (_exit, "step of FailingEnvironment raised SystemExit: 3", "environment/raised"),
        (_ours, "raised DataError: the table is empty", "data/no-rows"),
        (
            _hang,
            "step of FailingEnvironment did not return within 1 s",
            "environment/too-slow",
        ),
        (_nonsense, "returned a dict; expected StepResult", "environment/wrong-answer"),
        (
            _bad_observation,
            "returned observation = a str; expected Observation",
            "environment/wrong-answer",
        ),
        (
            _bad_messages,
            "step of FailingEnvironment: the observation Observation.* cannot be made",
            "environment/unreadable-observation",
        ),
        (_bad_ids, "whole numbers from 0 on; got -1", "environment/unreadable-observation"),
        (
            _bad_text,
            "the observation Observation.* cannot be made tokens: TypeError",
            "environment/unreadable-observation",
        ),
        (
            _bytes_in_message,
            "the observation Observation.* expected text, got bytes; decode them",
            "environment/unreadable-observation",
        ),
        (
            _bad_rewards,
            r"gave rewards = \[1.0\]; expected numbers by name",
            "environment/not-numbers",
        ),
        (_nan, "gave style = nan; expected one finite number", "environment/not-a-number"),
        (_too_much, r"gave the reward 1.8e\+35; expected at most", "environment/reward-too-large"),
    ],
)
def test_whatever_goes_wrong_is_the_episodes_and_is_named(
    stage, task, counting, how, message, caplog, code
):
    environment = failing(counting, stage, {1}, how=how)
    limits = {"environment_timeout_s": 1.0} if how is _hang else {}

    kept = run(task, range(3), stage.context(environment), on_error="drop", **limits)

    assert [one.uid.sample for one in kept] == [0, 2]
    assert caplog.text.count("The episode is left out") == 1
    stage.made.clear()
    with pytest.raises(
        RolloutError, match=rf"0\.3\.1\.0, turn 1: .*{message}", check=has_code(code)
    ):
        run(task, range(3), stage.context(environment), **limits)


def test_name_and_version_of_the_environment_are_in_the_message(stage, task, counting):
    context = stage.context(
        failing(counting, stage, {0}),
        more={"environment_label": lambda task: "guess_number (rlhf-env-guess 1.2)"},
    )

    with pytest.raises(
        RolloutError,
        match=r"step of guess_number \(rlhf-env-guess 1\.2\)",
        check=has_code("environment/raised"),
    ):
        run(task, [0], context)


def test_only_the_first_failures_are_warnings(stage, task, counting, caplog):
    caplog.set_level(logging.INFO)
    count = SHOWN_FAILURES + 5
    environment = failing(counting, stage, set(range(count)))

    assert run(task, range(count), stage.context(environment), on_error="drop") == []

    levels = [record.levelname for record in caplog.records if "left out" in record.message]
    assert levels == ["WARNING"] * SHOWN_FAILURES + ["INFO"] * 5
    assert "Further failures of environments are in the run's log alone." in caplog.text


@pytest.mark.parametrize("policy", ["drop", "value"])
def test_an_error_of_the_engine_ends_the_run_whatever_the_policy(stage, task, counting, policy):
    class Broken(type(stage.engine)):
        async def generate(self, request):
            raise RolloutError(f"{request.uid}: out of memory")

    stage.engine = Broken()

    with pytest.raises(RolloutError, match="out of memory", check=has_code("rollout/failed")):
        run(task, [0], stage.context(counting), on_error=policy)
    assert stage.dropped == {}


@pytest.mark.parametrize("wrong", [500, 2**31, -1, True])
@pytest.mark.parametrize("call", ["reset", "step"])
def test_a_token_that_the_model_does_not_know_is_the_environments_failure(
    stage, task, counting, wrong, call
):
    class Narrow(type(stage.engine)):
        """A model of 500 tokens."""

        async def generate(self, request):
            request.checked_limit(1000, 500)
            return await super().generate(request)

    stage.engine = Narrow()
    bad = Observation(token_ids=(77, wrong))

    def make():
        if len(stage.made) % 3 != 1:
            return counting(3)
        return counting(3, first=bad) if call == "reset" else counting(3, answer=lambda _: bad)

    context = stage.context(make, more={"environment_label": lambda task: "maze@3 (rlhf-env-maze)"})

    kept = run(task, range(3), context, on_error="drop")

    assert [one.uid.sample for one in kept] == [0, 2]
    assert list(stage.dropped.values()) == ["environment_failed"]
    where = rf"0\.3\.1\.0, turn \d: {call} of maze@3 \(rlhf-env-maze\)"
    with pytest.raises(
        RolloutError,
        match=f"{where}: the observation .*{wrong}",
        check=has_code("environment/unreadable-observation"),
    ):
        run(task, range(3), context)
    if call == "step":
        (one,) = (
            one
            for one in run(task, range(3), context, on_error="value", error_reward=-1.0)
            if end_of(one) == "environment_error"
        )
        assert one.token_ids.max() < 500
        assert one.turns[-1].reward == -1.0


def test_an_engine_that_refuses_tokens_of_its_own_ends_the_run(stage, task, counting):
    """Only an observation of token ids can be the environment's failure."""

    class Mad(type(stage.engine)):
        async def generate(self, request):
            request.checked_limit(1000, 5)

    stage.engine = Mad()

    with pytest.raises(
        RolloutError, match="vocabulary of 5", check=has_code("rollout/unknown-token")
    ):
        run(task, [0], stage.context(lambda: counting(3)), on_error="drop")
