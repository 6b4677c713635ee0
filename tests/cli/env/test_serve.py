"""The command ``rlhf env serve``, and a run that plays at the server."""

import asyncio
import os
import signal
import socket
import subprocess
import sys

import pytest
from tests.cases import one_in
from tests.deadlines import HANG_S

from rlhf_cli.main import main
from rlhf_config.isolation import IsolationOptions
from rlhf_core.component import ComponentRef
from rlhf_core.contracts import Action, Stop, Task, Uid
from rlhf_guard.environments.host import EnvironmentHost

ENVIRONMENT = """
from rlhf_core.contracts import Observation, StepResult

class Count:
    async def reset(self, task, seed):
        return Observation(text=str(seed))
    async def step(self, action):
        return StepResult(reward=float(len(action.text)), done=True)
    async def close(self):
        print("closed", flush=True)
"""


async def play(address, token_file):
    options = IsolationOptions(isolation="remote", address=(address,), token_file=str(token_file))
    component = ComponentRef(kind="rlhf_environments", name="count")
    host = EnvironmentHost("counted", component, "", options)
    try:
        environment = host.make()
        first = await environment.reset(Task(uid=Uid(0, 0)), 7)
        result = await environment.step(Action(text="abc", token_ids=(), stop=Stop.EOS, turn=0))
        return first.text, result.reward
    finally:
        await host.close()


@pytest.mark.slow
@pytest.mark.parametrize("number", one_in(2, [signal.SIGTERM, signal.SIGINT]))
def test_a_run_elsewhere_plays_at_the_server_until_it_is_ended(tmp_path, number):
    (tmp_path / "mine.py").write_text(ENVIRONMENT)
    command = [sys.executable, "-m", "rlhf_cli.main", "env", "serve", "mine.py:Count"]
    with subprocess.Popen(
        [*command, "--token-file", "token"], cwd=tmp_path, stdout=subprocess.PIPE, text=True
    ) as server:
        line = server.stdout.readline()
        assert line.startswith("serving count (")
        address = line.partition(" at ")[2].partition(",")[0]
        # The episode is left open, and closed as its connection ends.
        assert asyncio.run(play(address, tmp_path / "token")) == ("7", 3.0)
        assert server.stdout.readline() == "closed\n"
        os.kill(server.pid, number)
        assert server.wait(HANG_S) == 0


def test_an_address_that_cannot_be_listened_at_is_refused(tmp_path, capsys):
    (tmp_path / "mine.py").write_text(ENVIRONMENT)
    words = ["env", "serve", f"{tmp_path}/mine.py:Count", "--token-file", str(tmp_path / "token")]

    assert main([*words, "--host", "192.0.2.1", "--port", "1"]) == 2
    error = capsys.readouterr().err
    assert "expected an address to listen at, got 192.0.2.1:1" in error
    assert "Choose another --host of this machine" in error
    assert "warning: 192.0.2.1 can be reached from elsewhere" in error
    with socket.create_server(("127.0.0.1", 0)) as used:
        assert main([*words, "--port", str(used.getsockname()[1])]) == 2
    assert "Choose another --port, or 0" in capsys.readouterr().err


def test_an_environment_that_is_not_installed_is_named(tmp_path, capsys):
    assert main(["env", "serve", "no_such", "--token-file", str(tmp_path / "token")]) == 2
    assert "no_such" in capsys.readouterr().err
