"""Environments in worker processes: the same episodes as here, and errors that concern the guilty one."""

import asyncio
import importlib
import os
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import replace
from pathlib import Path

import pytest
from tests.deadlines import HANG_S

from rlhf_config.isolation import IsolationOptions
from rlhf_core import ConfigError, EnvironmentFailure, PluginError, RolloutError
from rlhf_core.contracts.external import ExternalConfig, refuse_here
from rlhf_guard.environments import connection
from rlhf_guard.environments.host import EnvironmentHost
from rlhf_testing.errors import has_code

pytestmark = pytest.mark.usefixtures("no_process_left")


async def play(environment, task, say, words):
    """Everything that an episode gives."""
    given = [await environment.reset(task, 17)]
    given += [await environment.step(say(word, turn)) for turn, word in enumerate(words)]
    given.append(await environment.episode_rewards())
    await environment.close()
    return given


def test_an_episode_is_the_same_in_a_worker_as_here(hosted, task, say, within):
    words = ["a", "tool", "surrogate", "é\ud800"]

    async def there():
        async with hosted() as host:
            return await play(host.make(), task(text="go", deep={"a": [1.5, b"x"]}), say, words)

    probes = importlib.import_module("probe_environments")
    here = probes.Probe(probes.ProbeConfig(size=4))
    expected = within(play(here, task(text="go"), say, words))
    assert within(there()) == expected


def test_a_worker_that_starts_too_slowly_is_one_line_that_names_the_option(
    hosted, task, say, within
):
    async def there():
        async with hosted(start_timeout_s=0.01) as host:
            await play(host.make(), task(text="go"), say, ["a"])

    with pytest.raises(PluginError) as caught:
        within(there())

    assert str(caught.value) == (
        "environment probe did not start within 0.01 s in worker process 1; raise its start_timeout_s if it needs "
        "longer to load"
    )


WHERE = r"step of probed \(probe_environments\) for task 0\.3\.0\.0, worker process 1, "


def test_what_goes_wrong_in_a_step_names_environment_version_task_and_reason(
    hosted, task, say, within
):
    """The worker lives on."""
    wrong = {
        "raise of its own": r"raised ValueError: of its own(\n .*)*\n    .*_environments.py:\d+ in _do: raise",
        "exit": "raised SystemExit: 5",
        "none": "returned 5 .int.; expected StepResult",
        "huge": r"gave an answer that has 100,000,\d+ bytes; expected at most 67,108,864",
        "deep": "gave an answer that .*(nested|recursion)",
        "object": "gave an answer that holds a object, which cannot be sent",
        "words": "gave reward = 'much'; expected a number",
    }

    async def run():
        async with hosted(restarts=0) as host:
            for word, text in wrong.items():
                environment = host.make()
                await environment.reset(task(prompt=3), 0)
                code = "environment/raised" if "raised" in text else "environment/wrong-answer"
                with pytest.raises(RolloutError, match=WHERE + text, check=has_code(code)):
                    await environment.step(say(word))
                await environment.close()

    within(run())


def test_an_error_of_the_framework_that_an_environment_raises_keeps_its_code(
    hosted, task, say, within
):
    async def run():
        async with hosted(restarts=0) as host:
            environment = host.make()
            await environment.reset(task(), 0)
            with pytest.raises(EnvironmentFailure, check=has_code("data/no-rows")) as caught:
                await environment.step(say("ours the table is empty"))
            assert "raised DataError: the table is empty" in str(caught.value)

    within(run())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("word", "text"),
    [
        ("die", r"ended its process \(exit code 7\)\n    printed: last words"),
        (
            "task exit",
            r"ended its process \(exit code 5\)\n    printed: a task of the environment raised SystemExit: 5\n"
            r"    printed: .*probe_environments.py:\d+ in _do: sys.exit\(5\)",
        ),
        ("garbage", "sent an answer that cannot be read"),
        pytest.param(
            "garbage \0\0\0\2{}", "sent an answer that cannot be read", marks=pytest.mark.matrix
        ),
        pytest.param(
            "garbage \0\0\0\1[", "sent an answer that cannot be read", marks=pytest.mark.matrix
        ),
    ],
)
def test_a_worker_that_dies_or_writes_garbage_is_started_again(
    hosted, task, say, within, word, text
):
    async def run():
        async with hosted(restarts=1) as host:
            environment = host.make()
            await environment.reset(task(prompt=3), 0)
            with pytest.raises(
                RolloutError, match=WHERE + text, check=has_code("environment/died")
            ):
                await environment.step(say(word))
            await environment.close()
            other = host.make()
            assert (await other.reset(task(), 5)).text == "5"
            await other.close()

    within(run())


def test_numbers_that_are_not_finite_arrive_for_the_executor_to_refuse(hosted, task, say, within):
    async def run():
        async with hosted() as host:
            environment = host.make()
            await environment.reset(task(), 0)
            return await environment.step(say("nan"))

    assert str(within(run()).reward) == "nan"


@pytest.fixture
def patient(monkeypatch):
    """A worker has the time of a hang to say that it gave a request up."""
    monkeypatch.setattr(connection, "CANCEL_LIMIT_S", HANG_S)


@pytest.fixture
def hurried(monkeypatch):
    """Requests that hang have a second; all others have the time of a hang."""
    whole = connection.Connection.call

    async def call(self, op, limit_s, **fields):
        hangs = op == "step" and fields["action"]["text"].endswith(" 3600")
        return await whole(self, op, 1.0 if hangs else limit_s, **fields)

    monkeypatch.setattr(connection.Connection, "call", call)


@pytest.mark.slow
@pytest.mark.usefixtures("hurried", "patient")
def test_an_episode_that_hangs_does_not_hold_the_others(hosted, task, say, within):
    async def run():
        async with hosted() as host:
            first, second = host.make(), host.make()
            await first.reset(task(1), 0)
            await second.reset(task(2), 0)
            hanging = asyncio.create_task(first.step(say("wait 3600")))
            assert (await second.step(say("a"))).observation.text == "a"
            with pytest.raises(
                RolloutError,
                match=r"task 0\.1\.0\.0.*did not answer step within 1 s",
                check=has_code("environment/too-slow"),
            ):
                await hanging
            # The worker lives on, with the second episode.
            assert (await second.step(say("b"))).reward == 3
            await first.close()

    within(run())


@pytest.mark.slow
@pytest.mark.usefixtures("hurried")
def test_a_worker_that_cannot_be_interrupted_is_ended_and_started_again(
    hosted, task, say, within, monkeypatch
):
    monkeypatch.setattr(connection, "CANCEL_LIMIT_S", 0.2)

    async def run():
        async with hosted() as host:
            first, second = host.make(), host.make()
            await first.reset(task(1), 0)
            await second.reset(task(2), 0)
            with pytest.raises(
                RolloutError,
                match="did not answer step within 1 s",
                check=has_code("environment/too-slow"),
            ):
                await first.step(say("block 3600"))
            with pytest.raises(
                RolloutError,
                match=r"0\.2\.0\.0.*did not answer|did not give a request up",
                check=lambda error: error.code in ("environment/too-slow", "environment/died"),
            ):
                await second.step(say("a"))
            await asyncio.gather(first.close(), second.close(), return_exceptions=True)

    within(run())


@pytest.mark.usefixtures("patient")
def test_a_step_that_is_cancelled_is_cancelled_where_it_runs(hosted, task, say, within):
    async def run():
        async with hosted() as host:
            environment = host.make()
            await environment.reset(task(), 0)
            step = asyncio.create_task(environment.step(say("wait 3600")))
            await asyncio.sleep(0.2)
            step.cancel()
            with pytest.raises(asyncio.CancelledError):
                await step
            assert (await environment.step(say("a"))).reward == 3
            await environment.close()

    within(run())


@pytest.mark.slow
def test_a_killed_worker_costs_its_episodes_alone_and_is_started_within_the_budget(
    hosted, task, say, within, tmp_path
):
    """100 episodes are under way in two workers when one of them is killed; it may start again once."""

    async def run():
        async with hosted(workers=2, restarts=1) as host:
            episodes = [host.make() for _ in range(100)]
            await asyncio.gather(*(one.reset(task(i), i) for i, one in enumerate(episodes)))
            go_on, begun = tmp_path / "on", tmp_path / "on.begun"
            steps = [asyncio.create_task(one.step(say(f"until {go_on}"))) for one in episodes]
            while not (begun.exists() and begun.stat().st_size == len(episodes)):
                await asyncio.sleep(0.01)
            kill_a_worker(host, 0)
            go_on.touch()
            results = await asyncio.gather(*steps, return_exceptions=True)
            assert [isinstance(one, RolloutError) for one in results] == [True, False] * 50
            assert all("0.4.0.0" not in str(one) or i == 4 for i, one in enumerate(results))
            assert "killed by SIGKILL" in str(results[0])
            await asyncio.gather(*(one.close() for one in episodes))

            again = [host.make(), host.make()]
            await asyncio.gather(*(one.reset(task(), 0) for one in again))
            kill_a_worker(host, 0)
            with pytest.raises(
                RolloutError, match="killed by SIGKILL", check=has_code("environment/died")
            ):
                await again[0].step(say("wait 3600"))
            with pytest.raises(
                RolloutError,
                match=r"started again 1 times before.*--env\.probed\.restarts",
                check=has_code("environment/restarted-too-often"),
            ):
                await host.make().reset(task(), 0)

    within(run())


def kill_a_worker(host, slot):
    """SIGKILL to the worker below the keeper."""
    keeper = host._slots[slot].place._process._process.pid
    (worker,) = subprocess.run(
        ["ps", "-o", "pid=", "--ppid", str(keeper)], capture_output=True, text=True, check=True
    ).stdout.split()
    os.kill(int(worker), signal.SIGKILL)


@pytest.mark.slow
def test_a_thousand_episodes_share_one_worker(hosted, task, say, within):
    async def episode(host, number):
        return await play(
            host.make(), task(number), lambda w, t: say(f"{w}{number}", t), ["a", "b"]
        )

    async def run():
        async with hosted() as host:
            return await asyncio.gather(*(episode(host, number) for number in range(1000)))

    given = within(run())
    assert [one[2].observation.text for one in given] == [f"b{number}" for number in range(1000)]


@pytest.mark.slow
def test_options_that_the_environment_refuses_end_the_start(probe, within):
    async def run(component):
        host = EnvironmentHost("probed", component, "", IsolationOptions(isolation="process"))
        try:
            await host.start()
        finally:
            await host.close()

    not_started = has_code("environment/not-started")
    with pytest.raises(
        PluginError, match=r"probe could not be started.*(?s:.)*size", check=not_started
    ):
        within(run(replace(probe, options={"size": "much"})))
    with pytest.raises(
        PluginError,
        match=r"no environment 'prob'\. Did you mean 'probe'|no .*'prob'",
        check=not_started,
    ):
        within(run(replace(probe, name="prob")))


@pytest.mark.slow
def test_nothing_is_left_when_the_run_is_killed(probe, tmp_path):
    """The worker waits in a step when the run gets SIGKILL; the fixture finds what is left."""
    script = tmp_path / "run.py"
    script.write_text(
        textwrap.dedent(f"""
        import asyncio, sys
        sys.path.insert(0, {str(Path(__file__).parent)!r})
        from rlhf_core.component import ComponentRef
        from rlhf_core.contracts import Action, Stop, Task, Uid
        from rlhf_guard.environments.host import EnvironmentHost
        from rlhf_config.isolation import IsolationOptions

        async def main():
            probe = ComponentRef(kind="rlhf_environments", name="probe")
            host = EnvironmentHost("p", probe, "", IsolationOptions(isolation="process"))
            environment = host.make()
            await environment.reset(Task(uid=Uid(0, 0)), 0)
            print("playing", flush=True)
            await environment.step(Action(text="block 3600", token_ids=(), stop=Stop.EOS, turn=0))

        asyncio.run(main())
        """)
    )
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout.readline() == "playing\n"
        below = descendants(run.pid)
        assert len(below) >= 2
        run.kill()
    give_up = time.monotonic() + HANG_S
    while any(Path(f"/proc/{pid}").exists() for pid in below) and time.monotonic() < give_up:
        time.sleep(0.05)
    assert not [pid for pid in below if Path(f"/proc/{pid}").exists()]


def descendants(root):
    found = subprocess.run(
        ["ps", "-o", "pid=", "--ppid", str(root)], capture_output=True, text=True
    ).stdout.split()
    return [int(pid) for pid in found] + [pid for each in found for pid in descendants(each)]


@pytest.mark.parametrize("path", ["/nowhere", "."])
def test_an_interpreter_that_is_none_is_refused(probe, path):
    options = IsolationOptions(isolation="venv", python=path)

    with pytest.raises(ConfigError, match="-m venv", check=has_code("environment/no-interpreter")):
        EnvironmentHost("probed", probe, "", options)


def test_an_external_environment_runs_elsewhere_under_its_own_name():
    config = ExternalConfig(name="probe", options={"size": 2})

    assert config.component().name == "probe"
    assert config.component().options == {"size": 2}
    with pytest.raises(
        ConfigError,
        match=r"probe is not part of this process\. .*isolation",
        check=has_code("environment/external"),
    ):
        refuse_here(config)


def test_a_worker_sees_no_secret_of_the_environment(hosted, task, say, within, monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "a secret")
    monkeypatch.setenv("MY_JUDGE", "wanted")

    async def run():
        async with hosted(pass_env=("MY_JUDGE",)) as host:
            environment = host.make()
            await environment.reset(task(), 0)
            seen = (await environment.step(say("variables"))).observation.text.split()
            with pytest.raises(
                RolloutError,
                match="WANDB_API_KEY is none of them: name it in pass_env",
                check=has_code("environment/raised"),
            ):
                await environment.step(say("key WANDB_API_KEY"))
            return seen

    seen = within(run())
    assert {"PATH", "RLHF_PLUGINS", "MY_JUDGE"} <= set(seen)
    assert "WANDB_API_KEY" not in seen
