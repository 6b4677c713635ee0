"""The recipe ``calculator_chain``: its demonstrations are answers that the environment rewards in full."""

import asyncio
import importlib.util
import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from rlhf_core.contracts import Action, Stop, Task, ToolCall, Uid
from rlhf_env_calculator.config import CalculatorConfig
from rlhf_env_calculator.environment import Calculator
from rlhf_testing.tiny import ALPHABET

EXAMPLE = Path(__file__).parents[2] / "examples" / "calculator_chain"


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    folder = tmp_path_factory.mktemp("chain")
    flags = ("--output", str(folder), "--demonstrations", "6")
    subprocess.run(
        [sys.executable, str(EXAMPLE / "prepare.py"), *flags], check=True, capture_output=True
    )
    return [json.loads(line) for line in (folder / "demonstrations.jsonl").read_text().splitlines()]


def tiny_model_with_tools(folder: Path) -> Path:
    """Write the tiny model of the calculator's package, with letters for questions in words."""
    script = EXAMPLE.parent / "rlhf-env-calculator" / "prepare.py"
    spec = importlib.util.spec_from_file_location("calculator_prepare", script)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.ALPHABET = ALPHABET
    module.write_model(folder, seed=0)
    return folder


def played(row: dict) -> tuple[str, list[str], float]:
    """Return the question, the tool's results and the reward of an episode in which the policy says what a row has."""

    async def episode():
        environment = Calculator(CalculatorConfig(digits=3))
        problem = row["messages"][0]["content"].removeprefix("What is ").partition("? ")[0]
        task = Task(
            uid=Uid(0, 0), row={"problem": problem, "answer": row["messages"][-1]["content"]}
        )
        first = await environment.reset(task, 0)
        results, reward = [], 0.0
        for turn, message in enumerate(m for m in row["messages"] if m["role"] == "assistant"):
            calls = tuple(
                ToolCall(
                    name=call["function"]["name"],
                    arguments=json.dumps(call["function"]["arguments"]),
                    id="c",
                )
                for call in message.get("tool_calls", ())
            )
            action = Action(
                token_ids=(), stop=Stop.EOS, turn=turn, text=message["content"], tool_calls=calls
            )
            step = await environment.step(action)
            reward += sum(step.rewards.values())
            if step.observation is not None:
                results += [said["content"] for said in step.observation.messages]
        return first.messages[0]["content"], results, reward

    return asyncio.run(episode())


def test_demonstrations_are_what_the_environment_asks_and_rewards(rows):
    assert [len(row["messages"]) for row in rows] == [4, 6, 8] * 2
    for row in rows:
        question, results, reward = played(row)
        assert question == row["messages"][0]["content"]
        assert results == [m["content"] for m in row["messages"] if m["role"] == "tool"]
        assert reward == pytest.approx(1.1)


def test_training_asks_for_more_calls_than_were_shown_and_has_turns_for_them():
    run = tomllib.loads((EXAMPLE / "run.toml").read_text())
    calls = run["env"]["calculator"]["numbers"] - 1

    assert calls > 3
    assert run["rollout"]["multi_turn"]["max_turns"] > calls + 1


@pytest.mark.slow
def test_both_steps_of_the_recipe_train_a_tiny_model(rows, tmp_path, monkeypatch):
    from rlhf_cli.main import main

    model = str(tiny_model_with_tools(tmp_path / "model"))
    data = tmp_path / "rows.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    monkeypatch.chdir(tmp_path)
    lean = ("--log.progress", "off", "--steps", "2")

    sft = ("sft", "-c", str(EXAMPLE / "sft.toml"), "--model", model, "--data", str(data))
    assert main([*sft, "--train.batch_size", "2", *lean]) == 0
    small = (
        "--rollout.batch_size",
        "2",
        "--rollout.n_samples_per_prompt",
        "2",
        "--rollout.max_new_tokens",
        "8",
    )
    few = ("--eval.max_samples", "2", "--backend.torch.compile", "false")
    assert main(["train", "-c", str(EXAMPLE / "run.toml"), *small, *few, *lean]) == 0
