"""Environments of verifiers in interpreters of their own, played over the wire."""

import asyncio
from itertools import islice
from pathlib import Path

import pytest
from tests.contrib.bridges.interpreters import extended, own_interpreter
from tests.deadlines import HANG_S

from rlhf_config.isolation import IsolationOptions
from rlhf_core import RolloutError
from rlhf_core.component import ComponentRef
from rlhf_core.contracts import Action, Stop, Task, ToolCall, Uid
from rlhf_guard.environments.host import EnvironmentHost
from rlhf_guard.environments.tasks import IsolatedTasks
from rlhf_testing.errors import has_code

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("no_process_left")]

TASKSETS = Path(__file__).parent / "verifiers_tasksets"


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    return extended(
        tmp_path_factory.mktemp("verifiers"), own_interpreter("verifiers-0.4"), TASKSETS
    )


@pytest.fixture
def host(python):
    def make(**options):
        return EnvironmentHost(
            "tasksets",
            ComponentRef(kind="rlhf_environments", name="verifiers", options=options),
            "",
            IsolationOptions(isolation="venv", python=python, step_timeout_s=HANG_S),
        )

    return make


@pytest.fixture(scope="module")
def known_rows():
    return {}


@pytest.fixture
def rows(host, known_rows):
    """``rows(count, split="train", **options)``: the first tasks of a split, read once for all tests."""

    def read(count, split="train", **options):
        name = repr((split, options))
        if name not in known_rows:
            tasks = IsolatedTasks(host(**options))
            try:
                known_rows[name] = list(islice(tasks.tasks(split), 60))
            finally:
                asyncio.run(tasks.close())
        return known_rows[name][:count]

    return read


def say(answer, turn):
    """An answer with a text, or a call of a tool."""
    if isinstance(answer, str):
        return Action(text=answer, token_ids=(1,), stop=Stop.EOS, turn=turn)
    return Action(
        text="", content="", token_ids=(1,), stop=Stop.EOS, turn=turn, tool_calls=(answer,)
    )


async def episode(host, row, answers):
    """What was shown, the metrics at the end, and the rewards; without an end, those of a limit after the answers."""
    environment = host.make()
    try:
        first = await environment.reset(Task(uid=Uid(0, 0), row=row), 0)
        shown, metrics = [first], {}
        for turn, answer in enumerate(answers):
            result = await environment.step(say(answer, turn))
            metrics = dict(result.metrics)
            if result.done:
                break
            shown.append(result.observation)
        return shown, metrics, dict(await environment.episode_rewards())
    finally:
        await environment.close()


@pytest.fixture
def play(host, rows):
    """``play(answers, index=0, **options)``: an episode of one of the taskset's own tasks."""

    def run(answers, index=0, **options):
        # Tasks are the taskset's, whoever plays them.
        row = rows(index + 1, id=options["id"])[index]

        async def once():
            opened = host(**options)
            try:
                return await asyncio.wait_for(episode(opened, row, answers), HANG_S)
            finally:
                await opened.close()

        return asyncio.run(once())

    return run


def said(observation):
    return [(message["role"], message["content"]) for message in observation.messages]


def test_rewards_have_their_names_and_weights(play):
    shown, metrics, rewards = play(["6"], index=3, id="bridge-sums")
    _, wrong_metrics, wrong = play(["123"], index=3, id="bridge_sums")

    assert [said(one) for one in shown] == [[("system", "Add."), ("user", "3+3=")]]
    assert rewards == {"right": 2.0, "short": 0.5}
    assert metrics == {"length": 1.0, "turns": 1.0}
    assert wrong == {"right": 0.0, "short": 0.0}
    assert wrong_metrics["length"] == 3.0


def test_tasks_have_splits_and_options(rows):
    options = {"id": "bridge_sums", "kwargs": {"size": "5"}, "eval_tasks": 2}

    train, held_out = rows(9, **options), rows(9, "eval", **options)

    assert [row["task"]["prompt"] for row in held_out] == ["0+0=", "1+1="]
    assert [row["task"]["prompt"] for row in train] == ["2+2=", "3+3=", "4+4="]
    assert len({row["key"] for row in train + held_out}) == 5
    with pytest.raises(KeyError, match="eval"):
        rows(1, "eval", id="bridge_sums")


def test_a_user_of_the_environment_speaks_between_turns(play):
    shown, _, rewards = play(["a4", "b4", "wrong"], index=4, id="bridge_talk")

    assert [said(one) for one in shown] == [[("user", f"{letter}4")] for letter in "abc"]
    assert rewards == {"repeated": pytest.approx(2 / 3)}


def test_what_was_played_is_scored_when_a_limit_of_the_run_ends_the_episode(play):
    _, _, rewards = play(["a0"], id="bridge_talk")
    _, _, nothing = play([], id="bridge_sums")

    assert rewards == {"repeated": pytest.approx(1 / 3)}
    assert nothing == {"right": 0.0, "short": 0.5}


def test_tools_of_a_task_are_offered_and_called(play):
    call = ToolCall(name="lamp_switch", arguments='{"on": true}')
    unknown, broken = (
        ToolCall(name="fly", arguments=""),
        ToolCall(name="lamp_switch", arguments="{"),
    )

    shown, _, rewards = play([call, unknown, broken, "done"], id="bridge_tools")

    assert [tool["function"]["name"] for tool in shown[0].tools] == ["lamp_switch"]
    assert said(shown[1]) == [("tool", "on=True")]
    assert said(shown[2]) == [("tool", "error: unknown tool 'fly'")]
    assert "invalid JSON" in shown[3].messages[0]["content"]
    assert rewards == {"lit": 1.0}


def test_limits_and_roles_are_options_of_verifiers(play):
    shown, _, rewards = play(
        ["a0", "b0", "c0"], id="bridge_talk", settings={"agent": {"max_turns": 2}}
    )

    assert len(shown) == 2
    assert rewards == {"repeated": pytest.approx(2 / 3)}


@pytest.mark.parametrize(
    ("answers", "options", "message", "code"),
    [
        (
            ["boom"],
            {},
            r"bridge_sums \(verifiers 0\.4\.\d+\) failed: .*this reply cannot be scored",
            "environment/failed",
        ),
        (
            ["1", "2"],
            {"settings": {"id": "best-of-n"}},
            r"best-of-n\+bridge_sums \(verifiers 0\.4\.\d+\): the environment rewrote its conversation",
            "environment/rewrote-history",
        ),
    ],
)
def test_an_episode_that_fails_says_which_taskset_and_versions(
    play, answers, options, message, code
):
    with pytest.raises(RolloutError, match=message, check=has_code(code)):
        play(answers, id="bridge_sums", **options)


@pytest.mark.parametrize(
    "options",
    [
        {"id": "no_such_taskset"},
        {"id": "bridge_sums", "kwargs": {"sise": 3}},
        {"id": "bridge_sums", "harness": "no_such_harness"},
        {"id": "bridge_sums", "settings": {"agent": {"max_turns": "many"}}},
    ],
)
def test_options_that_do_not_fit_are_refused(host, options):
    async def fails():
        opened = host(**options)
        try:
            await episode(opened, {}, [])
        finally:
            await opened.close()

    with pytest.raises(
        RolloutError,
        match="expected a taskset of verifiers in id",
        check=has_code("environment/not-loadable"),
    ):
        asyncio.run(fails())


def test_many_episodes_share_a_worker(host, rows):
    given = rows(50, id="bridge_sums", kwargs={"size": 50})

    async def run():
        opened = host(id="bridge_sums", kwargs={"size": 50})
        try:
            played = [episode(opened, row, [str(2 * n)]) for n, row in enumerate(given)]
            return await asyncio.wait_for(asyncio.gather(*played), HANG_S)
        finally:
            await opened.close()

    for n, (shown, _, rewards) in enumerate(asyncio.run(run())):
        assert said(shown[0])[-1] == ("user", f"{n}+{n}=")
        assert rewards == {"right": 2.0, "short": 0.5}


def test_an_episode_that_is_given_up_leaves_the_others_alone(host, rows):
    first, second = rows(2, id="bridge_sums")

    async def run():
        opened = host(id="bridge_sums")
        try:
            left = opened.make()
            await left.reset(Task(uid=Uid(0, 0), row=first), 0)
            going = opened.make()
            await going.reset(Task(uid=Uid(0, 1), row=second), 0)
            await left.close()
            result = await going.step(say("2", 0))
            rewards = await going.episode_rewards()
            await going.close()
            return result.done, rewards, await episode(opened, first, ["0"])
        finally:
            await opened.close()

    done, rewards, (_, _, again) = asyncio.run(run())

    assert done
    assert rewards == again == {"right": 2.0, "short": 0.5}


def test_an_environment_of_the_first_api_that_fails_says_which_and_versions(tmp_path):
    python = extended(tmp_path / "python", own_interpreter("verifiers-0.3"), TASKSETS)
    environment = ComponentRef(
        kind="rlhf_environments", name="verifiers_v0", options={"id": "bridge_broken_v0"}
    )
    options = IsolationOptions(isolation="venv", python=python, step_timeout_s=HANG_S)

    async def fails():
        opened = EnvironmentHost("old", environment, "", options)
        try:
            await episode(opened, {}, [])
        finally:
            await opened.close()

    message = r"bridge_broken_v0 \(verifiers 0\.3\.\d+\): ValueError: no such passage"
    with pytest.raises(RolloutError, match=message, check=has_code("environment/raised")):
        asyncio.run(fails())
