import asyncio

import numpy as np
import pytest
from tests.deadlines import HANG_S

from rlhf_core import RolloutError
from rlhf_core.contracts import (
    EpisodeEnd,
    Observation,
    StepResult,
    Stop,
    Task,
    TrajectoryColumns,
    Uid,
)
from rlhf_plugin_agents.config import MultiTurnConfig
from rlhf_plugin_agents.multi_turn import MultiTurn
from rlhf_testing.errors import has_code
from rlhf_testing.fakes import EOS_ID, FakeEngine


def ends(name):
    """The metrics of an episode that ended so."""
    return {f"end/{end}": float(end == name) for end in EpisodeEnd}


def end_of(trajectory):
    (name,) = [end for end in EpisodeEnd if trajectory.metrics[f"end/{end}"]]
    return name


def run(task, samples, context, **config):
    return asyncio.run(MultiTurn(MultiTurnConfig(**config)).run(task, samples, context))


def test_every_token_is_the_engines_or_the_environments(stage, task, counting):
    """Token in, token out: the sequence is the concatenation of what was asked, sampled and answered."""
    (one,) = run(task, [0], stage.context(counting))

    rebuilt = list(task.prompt_ids)
    for turn, action in enumerate(stage.made[0].actions):
        assert stage.engine.requests[turn].prompt_ids == tuple(rebuilt)
        rebuilt += action.token_ids
        if turn < 2:
            rebuilt += stage.renderer.encode(f"<{turn}>")
    assert one.token_ids.tolist() == rebuilt
    assert one.token_ids[one.action_mask].tolist() == [
        token for action in stage.made[0].actions for token in action.token_ids
    ]


def test_turns_span_the_actions_and_carry_their_own_rewards(stage, task, counting):
    stage.engine = FakeEngine(lambda request, index: "ab")

    (one,) = run(task, [0], stage.context(counting))

    # 8 prompt tokens, then "ab" + eos (3) and "<n>" (3) in turns; the last answer is not appended.
    assert [(turn.start, turn.end, turn.reward) for turn in one.turns] == [
        (8, 11, 0.0),
        (14, 17, 1.0),
        (20, 23, 2.0),
    ]
    columns = TrajectoryColumns.from_trajectories([one])
    assert columns.action_rewards.tolist() == [0, 0, 0, 0, 0, 1, 0, 0, 2]
    np.testing.assert_array_equal(one.rollout_logprobs * 1024, [-1, -2, -3] * 3)
    assert one.metrics == {"turns": 3.0, **ends("finished"), "env/steps": 3.0}


def test_special_tokens_of_an_action_stay_in_the_sequence_but_not_in_its_text(
    stage, task, counting
):
    stage.engine = FakeEngine(lambda request, index: "ab")

    run(task, [0], stage.context(counting))

    action = stage.made[0].actions[0]
    assert action.text == "ab"
    assert action.token_ids[-1] == EOS_ID
    assert action.stop is Stop.EOS


def test_each_turn_and_sample_has_its_own_seed_and_the_group_shares_the_environments(
    stage, task, counting
):
    context = stage.context(counting)

    run(task, [4, 5], context)

    drawn = {(request.uid.sample, request.turn): request.seeds for request in stage.engine.requests}
    assert drawn == {
        (sample, turn): (context.seed(sample, turn),) for sample in (4, 5) for turn in range(3)
    }
    assert {environment.seed for environment in stage.made} == {context.seed(0, -1)}


def test_episodes_do_not_depend_on_each_other(stage, task, counting):
    together = run(task, range(3), stage.context(counting))
    alone = run(task, [1], stage.context(counting))

    np.testing.assert_array_equal(alone[0].token_ids, together[1].token_ids)
    assert alone[0].turns == together[1].turns


def test_the_episode_ends_after_max_turns_without_being_truncated(stage, task, counting):
    (one,) = run(task, [0], stage.context(lambda: counting(100)), max_turns=4)

    assert len(one.turns) == 4
    assert not one.truncated
    assert end_of(one) == "turns"


@pytest.mark.parametrize("max_length", range(9, 24))
def test_the_length_limit_holds_and_is_told(stage, task, counting, max_length):
    """23 tokens are needed; with less room the last turn is marked, wherever the room runs out."""
    stage.engine = FakeEngine(lambda request, index: "ab")

    (one,) = run(task, [0], stage.context(counting, max_length=max_length))

    assert len(one.token_ids) <= max_length
    assert one.action_mask[-1]
    assert one.truncated == (max_length < 23)
    assert end_of(one) == ("finished" if max_length >= 23 or len(one.turns) == 3 else "context")


def test_a_turn_cut_by_its_own_limit_is_still_answered(stage, task, counting):
    stage.engine = FakeEngine(lambda request, index: "x" * 50)

    (one,) = run(task, [0], stage.context(counting, max_new_tokens=5))

    assert [turn.end - turn.start for turn in one.turns] == [5, 5, 5]
    assert [action.stop for action in stage.made[0].actions] == [Stop.LENGTH] * 3


def test_an_aborted_turn_ends_the_episode_without_a_step(stage, task, counting):
    class Stopping(FakeEngine):
        async def generate(self, request):
            (made,) = await super().generate(request)
            return [made if request.turn == 0 else type(made)(**_fields(made, stop=Stop.ABORTED))]

    stage.engine = Stopping()

    (one,) = run(task, [0], stage.context(counting))

    assert [turn.stop for turn in one.turns] == [Stop.EOS, Stop.ABORTED]
    assert end_of(one) == "aborted"
    assert len(stage.made[0].actions) == 1


def _fields(made, **changes):
    names = ("token_ids", "logprobs", "weight_version", "stop")
    return {name: getattr(made, name) for name in names} | changes


def test_messages_are_rendered_first_whole_and_then_as_what_follows(stage, task, counting):
    hello = Observation(messages=({"role": "user", "content": "hi"},))
    stage.engine = FakeEngine(lambda request, index: "yo" if request.turn else "x" * 99)

    (one,) = run(
        task,
        [0],
        stage.context(lambda: counting(2, first=hello, answer=lambda _: hello), max_new_tokens=4),
    )

    # The first turn was cut after 4 tokens, so its end-of-sequence is part of what follows.
    text = stage.renderer.decode(one.token_ids, skip_special_tokens=False)
    assert text == "[user]hi|[assistant]xxxx<eos>|[user]hi|[assistant]yo<eos>"
    assert stage.renderer.decode(one.token_ids[one.action_mask]) == "xxxxyo"


def test_token_observations_are_used_as_they_are(stage, task, counting):
    ids = Observation(token_ids=(77, 78))

    (one,) = run(task, [0], stage.context(lambda: counting(2, first=ids, answer=lambda _: ids)))

    assert one.token_ids[:2].tolist() == [77, 78]
    assert one.token_ids[one.turns[0].end :][:2].tolist() == [77, 78]


def test_an_empty_task_starts_with_the_first_observation(stage, counting):
    first = Observation(text="go:")

    (one,) = run(Task(uid=Uid(0, 1)), [0], stage.context(lambda: counting(1, first=first)))

    assert one.turns[0].start == 3


def test_nothing_to_read_first_is_an_error(stage, counting):
    with pytest.raises(
        RolloutError,
        match=r"0\.1\.0\.0.*--eval\.data",
        check=has_code("environment/no-observation"),
    ):
        run(Task(uid=Uid(0, 1)), [0], stage.context(counting))


def test_a_first_observation_without_room_for_an_action_is_an_error(stage, task, counting):
    with pytest.raises(
        RolloutError, match=r"0\.3\.0\.0.*8 tokens", check=has_code("rollout/prompt-too-long")
    ):
        run(task, [0], stage.context(counting, max_length=8))
    assert stage.made[0].closed == 1


def bad_environment(base, **methods):
    return type("BadEnvironment", (base,), methods)


async def _raise(*_):
    raise ZeroDivisionError("division by zero")


async def _sleep(*_):
    await asyncio.sleep(100)


def _give(value):
    async def method(*_):
        return value

    return method


@pytest.mark.parametrize(
    ("methods", "message", "code"),
    [
        (
            {"reset": _raise},
            r"0\.3\.0\.0, turn 0: reset of BadEnvironment raised ZeroDivisionError",
            "environment/raised",
        ),
        (
            {"step": _raise},
            r"0\.3\.0\.0, turn 0: step of BadEnvironment raised ZeroDivisionError",
            "environment/raised",
        ),
        (
            {"close": _raise},
            r"0\.3\.0\.0, turn 2: close of BadEnvironment raised ZeroDivisionError",
            "environment/raised",
        ),
        (
            {"reset": _sleep},
            "reset of BadEnvironment did not return within 2 s",
            "environment/too-slow",
        ),
        (
            {"step": _sleep},
            "step of BadEnvironment did not return within 2 s",
            "environment/too-slow",
        ),
        (
            {"step": _give(None)},
            "step of BadEnvironment returned a NoneType; expected StepResult",
            "environment/wrong-answer",
        ),
        (
            {"reset": _give("hello")},
            "reset of BadEnvironment returned a str; expected Observation",
            "environment/wrong-answer",
        ),
        (
            {"step": _give(StepResult(reward=float("nan")))},
            "reward = nan; expected one finite",
            "environment/not-a-number",
        ),
        (
            {"step": _give(StepResult(reward="1"))},
            "reward = '1'; expected one finite number",
            "environment/not-a-number",
        ),
        (
            {"step": _give(StepResult(reward=1e300))},
            r"reward 1e\+300; expected at most",
            "environment/reward-too-large",
        ),
        (
            {"step": _give(StepResult(metrics={"x": float("inf")}))},
            "x = inf; expected one finite",
            "environment/not-a-number",
        ),
        (
            {"step": lambda *_: StepResult()},
            "step of BadEnvironment raised TypeError",
            "environment/raised",
        ),
    ],
)
def test_what_an_environment_does_wrong_is_named(stage, task, counting, methods, message, code):
    with pytest.raises(RolloutError, match=message, check=has_code(code)):
        run(
            task,
            [0],
            stage.context(bad_environment(counting, **methods)),
            environment_timeout_s=2.0 if _sleep in methods.values() else HANG_S,
        )
    if "close" not in methods:
        assert stage.made[0].closed == 1


def test_an_environment_that_cannot_be_made_is_named_with_the_uid(stage, task):
    def make():
        raise OSError("no port left")

    with pytest.raises(
        RolloutError,
        match=r"0\.3\.0\.0, turn 0: making .*OSError: no port",
        check=has_code("environment/raised"),
    ):
        run(task, [0], stage.context(make))


def test_the_first_error_is_reported_when_closing_fails_too(stage, task, counting):
    with pytest.raises(
        RolloutError, match="step of BadEnvironment", check=has_code("environment/raised")
    ):
        run(task, [0], stage.context(bad_environment(counting, step=_raise, close=_raise)))


def test_one_failing_episode_closes_the_environments_of_all(stage, task, counting):
    class ThirdFails(counting):
        async def step(self, action):
            if self is stage.made[2]:
                raise ValueError("no")
            return await super().step(action)

    with pytest.raises(
        RolloutError,
        match=r"0\.3\.2\.0, turn 0: step of .*ThirdFails",
        check=has_code("environment/raised"),
    ):
        run(task, range(4), stage.context(ThirdFails))

    assert [environment.closed for environment in stage.made] == [1, 1, 1, 1]


def test_cancelling_closes_every_environment_and_leaves_no_request(stage, task, counting):
    stage.engine = FakeEngine(delay_s=100)

    async def start_and_cancel():
        running = asyncio.create_task(
            MultiTurn(MultiTurnConfig()).run(task, range(3), stage.context(counting))
        )
        while stage.engine.in_flight < 3:
            await asyncio.sleep(0)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(start_and_cancel())

    assert [environment.closed for environment in stage.made] == [1, 1, 1]
    assert stage.engine.in_flight == 0


def test_an_error_of_the_engine_passes_through(stage, task, counting):
    class Broken(FakeEngine):
        async def generate(self, request):
            raise RolloutError(f"{request.uid}: out of memory")

    stage.engine = Broken()

    with pytest.raises(
        RolloutError, match=r"^0\.3\.0\.0: out of memory$", check=has_code("rollout/failed")
    ):
        run(task, [0], stage.context(counting))


def test_without_an_environment_the_fix_is_named(stage, task):
    with pytest.raises(RolloutError, match="--env", check=has_code("environment/none")):
        run(task, [0], stage.context())


def test_calls_reach_the_environment_well_formed_or_with_what_is_wrong(stage, task, counting):
    answers = [
        '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>',
        "<tool_call>{</tool_call>",
        "none",
    ]
    stage.engine = FakeEngine(lambda request, index: answers[request.turn])

    run(task, [0], stage.context(counting))

    called, malformed, plain = stage.made[0].actions
    assert [(call.name, call.arguments) for call in called.tool_calls] == [("add", '{"a": 1}')]
    assert called.malformed == ()
    assert malformed.tool_calls == ()
    assert len(malformed.malformed) == 1
    assert (plain.tool_calls, plain.malformed) == ((), ())
