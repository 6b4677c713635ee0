"""Environments in an interpreter of another version of Python than the run's.

``RLHF_BRIDGES`` names a folder with virtual environments ``python-3.12`` and ``python-3.13``, as docs/isolation.md
makes them; where one is missing, its test is skipped.
"""

import asyncio
import importlib
import subprocess
import sys
from pathlib import Path

import pytest
from tests.contrib.bridges.interpreters import extended, own_interpreter
from tests.deadlines import HANG_S

from rlhf_config.isolation import IsolationOptions
from rlhf_core import PluginError, RolloutError
from rlhf_guard.environments.host import EnvironmentHost
from rlhf_testing.errors import has_code

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("no_process_left")]


def version(python):
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    done = subprocess.run(
        [f"{python}/bin/python", "-c", code], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


@pytest.mark.parametrize("name", ["python-3.12", "python-3.13"])
def test_episodes_and_errors_are_the_same_there(probe, name, tmp_path, task, say, within):
    python = extended(tmp_path / "python", own_interpreter(name), Path(__file__).parent)
    assert name.endswith(version(python))
    assert version(python) != "{}.{}".format(*sys.version_info)
    words = ["a", "tool", "surrogate", "é\ud800"]

    async def play(environment):
        given = [await environment.reset(task(text="go", deep={"a": [1.5, b"x"]}), 17)]
        given += [await environment.step(say(word, turn)) for turn, word in enumerate(words)]
        given.append(await environment.episode_rewards())
        await environment.close()
        return given

    async def there():
        options = IsolationOptions(
            isolation="venv", python=python, restarts=1, step_timeout_s=HANG_S
        )
        host = EnvironmentHost("probed", probe, "", options)
        try:
            played = await play(host.make())
            wrong = {
                "raise of its own": ("raised ValueError: of its own", "environment/raised"),
                "die": ("ended its process", "environment/died"),
            }
            for word, (text, code) in wrong.items():
                environment = host.make()
                await environment.reset(task(), 0)
                with pytest.raises(RolloutError, match=text, check=has_code(code)):
                    await environment.step(say(word))
                await environment.close()
            assert await play(host.make()) == played
            return played
        finally:
            await host.close()

    probes = importlib.import_module("probe_environments")
    assert within(there()) == asyncio.run(play(probes.Probe(probes.ProbeConfig(size=4))))


def test_an_interpreter_that_lacks_what_it_needs_is_told(probe, tmp_path, within):
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path)], check=True)

    async def start():
        host = EnvironmentHost(
            "probed", probe, "", IsolationOptions(isolation="venv", python=str(tmp_path))
        )
        try:
            await host.start()
        finally:
            await host.close()

    with pytest.raises(
        PluginError,
        match=r"needs to be of Python 3\.11 or later, with rlhf-core",
        check=has_code("environment/not-started"),
    ):
        within(start())
