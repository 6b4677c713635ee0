"""A folder with everything that the example commands name: a tiny model, rows, a reward function, an environment."""

import json
import shlex
import tomllib
from dataclasses import dataclass
from pathlib import Path

import pytest

from rlhf_cli.main import main
from rlhf_plugin_migrate.openrlhf.reinforcement.train_ppo_ray import migrate as migrate_flags
from rlhf_plugin_migrate.openrlhf.supervised import train_dpo, train_rm, train_sft
from rlhf_testing.tiny import write_tiny_model

COMMANDS = Path(__file__).parent / "commands"

PROGRAMS = {
    "train_sft": train_sft.migrate,
    "train_rm": train_rm.migrate,
    "train_dpo": train_dpo.migrate,
}

REWARD = """
class Tensor(float):
    def item(self):
        return float(self)


def reward_func(queries, prompts, labels):
    found = [float(label in query[len(prompt):]) for query, prompt, label in zip(queries, prompts, labels)]
    return {"rewards": [Tensor(found[0])], "scores": found, "extra_logs": {"length": Tensor(len(queries[0]))}}
"""

AGENT = """
from rlhf_core.contracts import Observation, StepResult


class AgentEnvironment:
    def __init__(self, config):
        pass

    async def reset(self, task, seed):
        return Observation()

    async def step(self, action):
        return StepResult(reward=1.0, done=True)

    async def close(self):
        pass
"""


@dataclass(frozen=True, slots=True)
class Migrated:
    code: int
    config: dict
    report: str


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory):
    """A mixture of experts: one of the commands asks for its balancing loss."""
    return write_tiny_model(tmp_path_factory.mktemp("migrate") / "model", "qwen3_moe")


@pytest.fixture
def workspace(tmp_path, tiny_model, monkeypatch):
    """The folder, as the current one; gives the shell variables that the example commands use."""
    rows = [
        {
            "prompt": f"{n} + 1 =",
            "question": f"{n} + 1?",
            "answer": str(n + 1),
            "solution": str(n + 1),
            "images": [],
            "messages": [{"role": "user", "content": f"{n} + 1?"}],
        }
        for n in range(40)
    ]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    pairs = [
        {
            "prompt": f"{n} + 1 =",
            "chosen": [*row["messages"], {"role": "assistant", "content": row["answer"]}],
            "rejected": [*row["messages"], {"role": "assistant", "content": "no"}],
        }
        for n, row in enumerate(rows)
    ]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    (tmp_path / "reward_func.py").write_text(REWARD)
    (tmp_path / "agent_func.py").write_text(AGENT)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_MODE", "offline")  # Its logger asks for a key else.
    return {
        "MODEL": str(tiny_model),
        "REWARD_MODEL": str(tiny_model),
        "DATA": "rows.jsonl",
        "PAIRS": "pairs.jsonl",
        "REWARD": "reward_func.py",
        "AGENT": "agent_func.py",
    }


@pytest.fixture
def run(capsys, tmp_path):
    """Run ``rlhf migrate`` with an output file; gives the exit code, the configuration and the report."""

    def call(*words, output="run.toml"):
        code = main(["migrate", *(["-o", output] if output else []), *map(str, words)])
        printed = capsys.readouterr()
        written = Path(output) if output else None
        config = tomllib.loads(written.read_text()) if written and written.exists() else {}
        return Migrated(code, config, printed.err + printed.out)

    return call


@pytest.fixture
def example(run, workspace):
    """Migrate one of the example commands, with the folder's files in place of its own."""

    def call(name, *flags, output="run.toml"):
        variables = [word for pair in workspace.items() for word in ("--set", "=".join(pair))]
        return run(COMMANDS / name, *variables, *flags, output=output)

    return call


@pytest.fixture
def outcome():
    """Settings of a command line, as values by path, and its rows by what was written."""

    def call(text):
        found = migrate_flags(text.split(), "reward.py")
        settings = {path: setting.value for path, setting in found.settings.items()}
        return settings, {row.what: row for row in found.rows()}

    return call


@pytest.fixture
def learned():
    """The same of a program that learns from examples."""

    def call(program, text, processes=1):
        found = PROGRAMS[program](shlex.split(text), processes)
        settings = {path: setting.value for path, setting in found.settings.items()}
        return settings, {row.what: row for row in found.rows()}

    return call
