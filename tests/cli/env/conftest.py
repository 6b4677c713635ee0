import pytest
from tests.deadlines import HANG_S

from rlhf_cli.main import main
from rlhf_testing.conformance.environments import lifetime

SUMS = '''
import asyncio

from pydantic import Field
from rlhf_core import Component, Config
from rlhf_core.contracts import EnvironmentKind, EnvironmentManifest, Observation, StepResult


class SumsConfig(Config):
    tries: int = Field(2, ge=1, description="then the episode ends")
    names: tuple[str, ...] = Field((), description="not used")


class Sums:
    """Add two numbers."""

    manifest = EnvironmentManifest(
        kind=EnvironmentKind.MULTI_TURN, reward_range=(0.0, 1.5), license="MIT", version="2"
    )

    def __init__(self, config):
        self.config = config
        self.total = ""

    def tasks(self, split):
        first = {"train": 1000, "eval": 9000}[split]
        return [{"key": f"{split}-{n}", "a": first + n, "b": 5 * n + 7001} for n in range(20)]

    async def reset(self, task, seed):
        self.total = str(task.row["a"] + task.row["b"])
        return Observation(text=f"{task.row['a']}+{task.row['b']}=")

    async def step(self, action):
        called = "".join(call.arguments for call in action.tool_calls)
        right = self.total in (action.text.strip(), called)
        return StepResult(
            observation=Observation() if right else Observation(text="no\\x1b[2J:"),
            rewards={"sum": 1.0 * right},
            done=right or action.turn + 1 >= self.config.tries,
            metrics={"right": float(right)},
        )

    async def episode_rewards(self):
        return {"polite": 0.5}

    async def oracle(self):
        return self.total

    async def close(self):
        pass


SUMS = Component(name="sums", factory=Sums, config=SumsConfig, summary="add two numbers")
'''


@pytest.fixture
def sums(tmp_path, monkeypatch):
    """The environment ``sums`` in a file of the working folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RLHF_PLUGINS", raising=False)
    # A machine that stands still holds the event loop as long.
    monkeypatch.setattr(lifetime, "MAX_BLOCKED_S", HANG_S)
    (tmp_path / "sums.py").write_text(SUMS)
    return tmp_path / "sums.py"


@pytest.fixture
def env(capsys):
    """Run ``rlhf env`` in this process: exit code, stdout, stderr."""

    def run(*words):
        code = main(["env", *map(str, words)])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run
