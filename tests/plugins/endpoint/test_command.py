import contextlib
import json
import re
import sys
from pathlib import Path

import pytest
from tests.deadlines import HANG_S

from rlhf_core import ConfigError, RolloutError
from rlhf_plugin_endpoint.config import EndpointConfig
from rlhf_testing.errors import has_code
from rlhf_testing.fakes import FakeEngine

ASKS = """
import json, os, sys, urllib.request

def ask(text):
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/chat/completions",
        json.dumps({"model": os.environ["RLHF_MODEL"], "messages": [{"role": "user", "content": text}]}).encode(),
        {"authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "content-type": "application/json"},
    )
    return json.load(urllib.request.urlopen(request))

ask("hello")
"""


def python(path, *words):
    return (sys.executable, path, *words)


def test_a_command_plays_an_episode_and_its_last_line_is_the_outcome(play):
    program = play.script(
        ASKS
        + """
task = json.load(open(os.environ["RLHF_TASK"]))
assert task == json.load(sys.stdin)
assert task["row"] == {"answer": "42"}, task
assert sys.argv[1:] == ["question", os.environ["OPENAI_BASE_URL"], "{other}"], sys.argv
print("some output")
print(json.dumps({"reward": 0.5, "metrics": {"seed": int(os.environ["RLHF_SEED"]) % 7}}))
"""
    )

    rows = play(
        agent="command",
        command=python(program, "{prompt}", "{base_url}", "{other}"),
        samples=(0, 1),
    )

    assert [row.total_reward for row in rows] == [0.5, 0.5]
    assert rows[0].metrics["agent/seed"] == rows[1].metrics["agent/seed"]


def test_a_command_gets_no_other_environment(play, monkeypatch):
    monkeypatch.setenv("SECRET_OF_THE_RUN", "x")
    monkeypatch.setenv("WANTED", "y")
    program = play.script(
        ASKS
        + """
assert "SECRET_OF_THE_RUN" not in os.environ
assert os.environ["WANTED"] == "y"
assert os.environ["ANTHROPIC_BASE_URL"] + "/v1" == os.environ["OPENAI_BASE_URL"]
print('{"reward": 1}')
"""
    )

    (row,) = play(agent="command", command=python(program), pass_env=("WANTED",))

    assert row.total_reward == 1.0


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ("import sys; sys.exit('it is broken')", "ended with status 1: it is broken"),
        ("import os; os.kill(os.getpid(), 9)", "ended with status -9: it wrote no error"),
        ("print('{\"reward\": ')", "wrote a last line that is no JSON"),
        ("print('no outcome')", "returned no reward"),
        ("print('x' * 5_000_000)", "returned no reward"),
    ],
)
def test_a_command_that_fails_says_how(play, program, message):
    with pytest.raises(RolloutError, match=message, check=has_code("agent/failed")):
        play(agent="command", command=python(play.script(program)))


@pytest.mark.parametrize("line", ['{"reward": 100}', '{"reward": ', '{"answer": 42}'])
def test_what_a_command_prints_is_no_outcome_where_rewards_judge_it(play, line):
    """A program that prints the policy's answer would let the policy write its own reward, or end the run."""
    program = play.script(f"{ASKS}\nprint({line!r})")

    (row,) = play(agent="command", command=python(program), reward_from="rewards")

    assert (row.reward, dict(row.rewards)) == (None, {})


def test_a_program_that_is_not_there_is_named(play):
    with pytest.raises(
        RolloutError, match="cannot be started: 'no-such-program'", check=has_code("agent/failed")
    ):
        play(agent="command", command=("no-such-program",))


def test_a_command_ends_with_its_episode_and_takes_its_children_along(play, no_process_left):
    program = play.script(
        ASKS
        + f"""
import subprocess, time
subprocess.Popen([sys.executable, "-c", "import time; time.sleep({HANG_S})"])
time.sleep({HANG_S})
"""
    )

    # On a busy machine the program may take longer to start and ask than the shorter time.
    for seconds in (3.0, HANG_S / 5):
        with contextlib.suppress(RolloutError):
            (row,) = play(agent="command", command=python(program), episode_timeout_s=seconds)
            break
    assert row.metrics["end/timeout"] == 1.0


def test_children_that_a_command_leaves_end_with_it(play, no_process_left):
    program = play.script(
        ASKS
        + f"""
import subprocess
subprocess.Popen([sys.executable, "-c", "import time; time.sleep({HANG_S})"])
print('{{"reward": 1}}')
"""
    )

    (row,) = play(agent="command", command=python(program))

    assert row.total_reward == 1.0


def test_the_command_of_the_page_on_agents_runs_as_it_stands_there(play, tmp_path, monkeypatch):
    page = (Path(__file__).parents[3] / "docs/agents.md").read_text()
    (program,) = re.findall(r'```python\n("""asks\.py: .*?)```', page, flags=re.DOTALL)
    (words,) = re.findall(r"`command = (\[.*?\])`", page)
    (tmp_path / "asks.py").write_text(program)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=":")
    play.engine = FakeEngine(lambda request, index: "it is 42")

    (row,) = play(agent="command", command=tuple(json.loads(words)))

    assert row.total_reward == 1.0


def test_a_program_that_is_not_there_is_found_before_a_model_is_loaded():
    with pytest.raises(ConfigError, match="'no-such-program'", check=has_code("agent/no-program")):
        EndpointConfig(agent="command", command=("no-such-program",)).check_outside()
    EndpointConfig(agent="command", command=(sys.executable,)).check_outside()
