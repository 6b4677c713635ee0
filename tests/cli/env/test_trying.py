"""``rlhf env try``: an episode in the terminal or in a pipe."""

import io
import os
import subprocess
import sys

import pytest


@pytest.fixture
def typed(monkeypatch):
    def give(text):
        monkeypatch.setattr(sys, "stdin", io.StringIO(text))

    return give


def test_lines_are_answers_and_everything_is_shown(env, sums, typed):
    typed("12\n8001\n")
    code, out, _ = env("try", "sums.py:SUMS")

    assert code == 0
    assert out.splitlines() == [
        "sums@2, task train-0, seed 0",
        "environment> 1000+7001=",
        "policy> 12",
        "reward sum> 0",
        "environment> no\\x1b[2J:",
        "policy> 8001",
        "reward sum> 1",
        "reward of the episode polite> 0.5",
        "end: finished after 2 turns; reward 1.5, right 1",
    ]


PICTURES = """
from PIL import Image
from rlhf_core.contracts import Observation, StepResult

class Gallery:
    def __init__(self, config): ...
    async def reset(self, task, seed):
        pictures = (Image.new("L", (3, 2)), "a.png", b"GIF8", "data:image/png;base64,AAAA")
        parts = [{"type": "image", "image": picture} for picture in pictures]
        return Observation(messages=({"role": "user", "content": [*parts, {"type": "text", "text": "which?"}]},))
    async def step(self, action):
        return StepResult(done=True)
    async def close(self): ...
"""


def test_an_image_is_shown_as_its_size_or_its_file(env, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gallery.py").write_text(PICTURES)

    _, out, _ = env("try", "gallery.py:Gallery", "--policy", "constant:7")

    assert out.splitlines()[1] == "user> [image 3 x 2] [image a.png] [image] [image] which?"


def test_the_end_of_the_input_ends_the_episode(env, sums, typed):
    typed("12\n")
    code, out, _ = env("try", "sums.py:SUMS", "--tries", 5)

    assert code == 0
    assert out.splitlines()[-1] == "end: aborted: there are no more answers; reward 0.5, right 0"


def test_a_line_may_call_a_tool(env, sums, typed):
    typed("/call add 8001\n")

    _, out, _ = env("try", "sums.py:SUMS")
    assert "finished after 1 turns; reward 1.5" in out


@pytest.mark.parametrize(
    ("policy", "end"),
    [("oracle", "finished after 1 turns; reward 1.5"), ("constant:7", "finished after 2 turns; r")],
)
def test_a_policy_may_answer_instead(env, sums, policy, end):
    code, out, _ = env(
        "try", "sums.py:SUMS", "--policy", policy, "--split", "eval", "--task", 3, "--seed", 9
    )

    assert code == 0
    assert out.startswith("sums@2, task eval-3, seed 9\nenvironment> 9003+7016=\n")
    assert end in out


def test_an_episode_is_left_after_as_many_turns_as_are_asked_for(env, sums):
    words = ["--policy", "constant:7", "--turns", 1]
    _, out, _ = env("try", "sums.py:SUMS", *words)

    assert "left after 1 turns; reward 0.5" in out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--policy", "gpt"], "--policy gpt: expected constant:TEXT or oracle"),
        (["--split", "test"], "--split test: sums has no such split"),
        (["--task", "20"], "--task 20: the split train of sums ends before it"),
    ],
)
def test_what_cannot_be_played_is_an_error(env, sums, words, said):
    code, _, err = env("try", "sums.py:SUMS", *words)

    assert code == 2
    assert said in err


def test_it_works_in_a_pipe(sums):
    done = subprocess.run(
        [sys.executable, "-m", "rlhf_cli", "env", "try", "sums.py:SUMS"],
        input="1\r\n8001",
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "end: finished after 2 turns; reward 1.5, right 1"
