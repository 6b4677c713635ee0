"""``rlhf eval --url`` as a user runs it, on data and on an environment."""

from __future__ import annotations

import json
import re

import pytest

from rlhf_cli.main import main

pytest.importorskip("httpx2")

ENVIRONMENT = '''
from rlhf_core.contracts import Observation, StepResult


class Guess:
    """The policy has to call the tool, and then to say the number that the tool gave."""

    async def reset(self, task, seed):
        self.number = seed % 10
        tool = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
        return Observation(messages=({"role": "user", "content": "which?"},), tools=(tool,))

    async def step(self, action):
        if action.turn == 0:
            call = action.tool_calls[0]
            message = {"role": "tool", "tool_call_id": call.id, "content": str(self.number)}
            return StepResult(observation=Observation(messages=(message,)), rewards={"called": 0.25})
        return StepResult(reward=float(action.text == str(self.number)), done=True, metrics={"m": 2.0})

    async def episode_rewards(self):
        return {"polite": 0.5}

    async def close(self):
        pass


class Tokens(Guess):
    async def reset(self, task, seed):
        return Observation(token_ids=(1, 2))


class Broken(Guess):
    async def step(self, action):
        raise ValueError("out of order")


class Nan(Guess):
    async def step(self, action):
        return StepResult(reward=float("nan"))
'''


@pytest.fixture
def place(tmp_path, monkeypatch, server):
    monkeypatch.chdir(tmp_path)
    rows = [{"prompt": f"{n}?"} for n in range(4)]
    (tmp_path / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    reward = "def ones(response, prompt):\n    return float(response == prompt[0])\n"
    (tmp_path / "r.py").write_text(reward)
    (tmp_path / "envs.py").write_text(ENVIRONMENT)
    return tmp_path


@pytest.fixture
def evaluate(place, server):
    def run(*words, code=0):
        common = [
            "--url",
            server.url,
            "--model-name",
            "m",
            "--output",
            "out",
            "--log.progress",
            "off",
        ]
        assert main(["eval", *common, "--remote.retry_wait_s", "0.01", *words]) == code
        if code:
            return [], []
        lines = (place / "out" / "episodes.jsonl").read_text().splitlines()
        return list(map(json.loads, lines)), json.loads((place / "out/summary.json").read_text())[
            "sets"
        ]

    return run


DATA = ("--data", "rows.jsonl", "--reward", "r.py:ones")


def test_a_server_answers_rows_of_data(evaluate, server):
    server.answer = lambda body: {"content": re.sub(r"\D", "", body["messages"][-1]["content"])}
    server.faults = [500, "garbage"]

    lines, (summary,) = evaluate(*DATA, "--eval.temperatures", "0.5", "--eval.n_samples", "2")

    assert [line["uid"] for line in lines] == [f"-1.{n}.{m}.0" for n in range(4) for m in range(2)]
    assert summary["reward"]["value"] == 1.0
    assert (summary["tokens_in"], summary["tokens_out"]) == (40, 16)
    assert lines[0]["messages"] == [
        {"role": "user", "content": "0?"},
        {"role": "assistant", "content": "0"},
    ]
    assert lines[0]["segments"] is None
    assert len({request["seed"] for request in server.requests}) == 8


def test_a_chat_keeps_its_system_prompt(evaluate, server):
    evaluate(*DATA, "--data.chat", "--data.system_prompt", "be brief")

    assert server.requests[0]["messages"][0] == {"role": "system", "content": "be brief"}


def test_an_environment_is_played_in_messages_with_tools(evaluate, server):
    def policy(body):
        last = body["messages"][-1]
        if last["role"] == "tool":
            return {"content": last["content"]}
        call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
        return {"content": None, "tool_calls": [call]}

    server.answer = policy
    lines, (summary,) = evaluate("--env", "envs.py:Guess", "--eval.max_samples", "3")

    assert summary["reward"]["value"] == 1.75
    assert lines[0]["rewards"] == {"polite": 0.5}
    assert lines[0]["metrics"] == {"env/m": 2.0, "env/reward/called": 0.25}
    assert (lines[0]["end"], lines[0]["turns"]) == ("finished", 2)
    second = next(one for one in server.requests if len(one["messages"]) == 3)
    assert second["tools"][0]["function"]["name"] == "look"
    assert second["messages"][1]["tool_calls"][0]["id"] == "c1"


def test_turns_that_run_out_end_the_episode(evaluate):
    lines, _ = evaluate(
        "--env", "echo_after_hint", "--eval.max_samples", "1", "--remote.max_turns", "1"
    )

    assert (lines[0]["end"], lines[0]["turns"], lines[0]["reward"]) == ("turns", 1, 0.0)


def test_a_server_without_usage_is_said_to_have_none(evaluate, server):
    server.usage = None

    lines, (summary,) = evaluate(*DATA)

    assert lines[0]["metrics"] == {"answers_without_usage": 1.0}
    assert summary["tokens_out"] == 0


@pytest.mark.parametrize(
    ("name", "code", "said"),
    [
        ("Tokens", 2, "its observation is token ids, which no chat server reads"),
        ("Broken", 1, "-1.0.0.0, turn 0: step of Broken raised ValueError: out of order"),
        ("Nan", 1, "step of Nan gave reward = nan; expected one finite number"),
    ],
)
def test_an_environment_that_cannot_be_played_is_named(evaluate, capsys, name, code, said):
    evaluate("--env", f"envs.py:{name}", "--eval.max_samples", "1", code=code)

    assert said in capsys.readouterr().err


def test_an_environment_that_fails_may_cost_its_episode_alone(evaluate):
    lines, (summary,) = evaluate(
        "--env", "envs.py:Broken", "--eval.max_samples", "2", "--remote.on_error", "drop"
    )

    assert [line["dropped"] for line in lines] == ["environment_failed"] * 2
    assert (summary["unscored"], summary["reward"]) == (2, None)
    assert summary["ends"] == {"environment_failed": 2}


def test_a_server_that_fails_in_the_middle_leaves_what_was_finished(
    evaluate, server, place, capsys
):
    server.faults = []
    answers = iter(range(2))

    def policy(body):
        if next(answers, None) is None:
            server.faults = [400]
        return {"content": "1"}

    server.answer = policy
    evaluate(*DATA, "--rollout.concurrency", "1", code=1)
    assert "refused the request with status 400" in capsys.readouterr().err
    assert len((place / "out" / "episodes.jsonl").read_text().splitlines()) == 3

    server.answer = lambda body: {"content": "1"}
    lines, _ = evaluate(*DATA)

    assert [line["task"] for line in lines] == ["0", "1", "2", "3"]
