"""A package outside of this repository decides prompts, rows, rewards of tokens, learning rates, the KL, a metric and
the end: it trains, dies and resumes."""

import json
import os
import signal
import subprocess
import sys
from functools import partial

import pytest
from tests.deadlines import HANG_S

from rlhf_testing.tiny import write_tiny_model
from rlhf_trainer.durable.records import replay

from .forked_runs import metrics_without_times, run_in_a_fork, weights_digest

PYPROJECT = """
[build-system]
requires = ["hatchling>=1.27,<2"]
build-backend = "hatchling.build"
[project]
name = "rlhf-plugin-outside"
version = "3.1.0"
[project.entry-points."rlhf.plugins.v1"]
outside = "rlhf_plugin_outside"
[tool.hatch.build.targets.wheel]
packages = ["src/rlhf_plugin_outside"]
"""

MODULE = '''
"""A curriculum, endless rows, rewards of steps, a learning rate in stairs, and a KL that forgives what is near."""

from itertools import count

from pydantic import Field
from rlhf_core import Component, Config, hookimpl
from rlhf_core.contracts import (
    DrawRequest, EndRun, Observer, PromptResult, PromptSet, RewardResult, SchedulePoint
)


class HalfSolved:
    """Draws the prompts whose mean reward is nearest to the middle of what was seen; unknown ones come first."""

    def __init__(self, config):
        self.rewards = {}

    def begin(self, prompts: PromptSet):
        self.prompts = prompts

    def draw(self, request: DrawRequest):
        known = [reward for reward in self.rewards.values()]
        middle = (min(known) + max(known)) / 2 if known else 0.0
        shuffled = self.prompts.generator(request.taken).permutation(self.prompts.indices).tolist()
        nearest = sorted(shuffled, key=lambda i: abs(self.rewards.get(i, middle) - middle))
        return [nearest[number % len(nearest)] for number in range(request.count)]

    def note(self, results: list[PromptResult]):
        for result in results:
            self.rewards[result.index] = sum(result.rewards) / len(result.rewards)

    def state_dict(self):
        return {"rewards": list(self.rewards.items())}

    def load_state_dict(self, state):
        self.rewards = dict(state["rewards"])


class Numbers:
    """Numbers to turn around."""

    def __init__(self, config):
        pass

    def rows(self, start):
        for n in count(start):
            text = f"{n * 617 % 9973:04d}"
            yield {"prompt": text + "=", "answer": text[::-1]}

    def where(self, number):
        return f"number {number}"


class StepsConfig(Config):
    worth: float = Field(0.25, ge=0.0, description="reward of the best token")


class Steps:
    """Gives each token of the policy its part of the reward, by its id."""

    def __init__(self, config: StepsConfig):
        self.config = config

    async def score(self, requests):
        return [self.of(request) for request in requests]

    def of(self, request):
        pairs = zip(request.token_ids, request.action_mask, strict=True)
        written = [int(token) for token, is_action in pairs if is_action]
        parts = [(at, self.config.worth * (token % 3)) for at, token in enumerate(written)]
        return RewardResult.at_steps(parts)


class StairsConfig(Config):
    steps: int = Field(3, ge=1, description="of the stairs")


class Stairs:
    def __init__(self, config: StairsConfig):
        self.config = config

    def __call__(self, point: SchedulePoint) -> float:
        return 1.0 - int(point.progress * self.config.steps) / (self.config.steps + 1)


class ForgivingConfig(Config):
    nats: float = Field(0.5, gt=0.0, description="a log-ratio that costs half of its square no more")


class Forgiving:
    """Half the square for near tokens, and a line for far ones: Huber's loss."""

    def __init__(self, config: ForgivingConfig):
        self.config = config

    def __call__(self, log_ratio):
        size, edge = log_ratio.abs(), self.config.nats
        inside = size.clamp(max=edge)
        return inside * (size - inside / 2)


class Ones:
    """Share of answers with a 1."""

    def __init__(self, config):
        pass

    def __call__(self, episodes):
        return {"ones": sum("1" in text for text in episodes.responses) / len(episodes.responses)}


class NineEvents(Observer):
    """Ends a run after so many evaluations and steps together."""

    def __init__(self, config):
        self.heard = 0

    def _hear(self):
        self.heard += 1
        return EndRun(reason=f"heard {self.heard} events") if self.heard >= 9 else None

    def step_end(self, step, metrics):
        return self._hear()

    def eval_end(self, step, metrics):
        return self._hear()

    def state_dict(self):
        return {"heard": self.heard}

    def load_state_dict(self, state):
        self.heard = state["heard"]


@hookimpl
def rlhf_rewards():
    return [
        Component(name="steps", factory=Steps, config=StepsConfig, summary="by single tokens",
                  needs={"credits_tokens"})
    ]


@hookimpl
def rlhf_observers():
    return [Component(name="nine_events", factory=NineEvents, summary="ends after nine events")]


@hookimpl
def rlhf_eval_metrics():
    return [Component(name="ones", factory=Ones, summary="answers with a 1")]


@hookimpl
def rlhf_kl_estimators():
    return [Component(name="forgiving", factory=Forgiving, config=ForgivingConfig, summary="Huber's")]


@hookimpl
def rlhf_prompt_samplers():
    return [Component(name="half_solved", factory=HalfSolved, summary="half-solved ones")]


@hookimpl
def rlhf_data_sources():
    return [Component(name="numbers", factory=Numbers, summary="to turn around")]


@hookimpl
def rlhf_lr_schedules():
    return [Component(name="stairs", factory=Stairs, config=StairsConfig, summary="falls in stairs")]
'''

CONFIG = """
seed = 5
[model]
path = "model"
[data]
source = "numbers"
sampler = "half_solved"
max_samples = 6
max_prompt_tokens = 16
[rollout]
batch_size = 4
n_samples_per_prompt = 2
max_new_tokens = 4
[reward]
use = ["reward.py:score", "steps"]
[reward.steps]
worth = 0.5
[algo.advantage]
estimator = "reinforce"
[actor]
lr_schedule = "stairs"
warmup_ratio = 0.2
[actor.stairs]
steps = 2
[eval]
data = ["held=held.jsonl"]
every = 3
metrics = ["ones"]
temperatures = [1.0]
[algo.kl]
mode = "loss"
coef = 0.05
estimator = "forgiving"
forgiving.nats = 0.25
[actor.adam]
lr = 1e-3
[train]
steps = 8
[observers]
use = ["nine_events"]
[checkpoint]
every = 2
[log]
progress = "off"
tensorboard = false
curve = false
[runtime.local]
threads = 1
"""

REWARD = """
def score(response, row):
    return sum(a == b for a, b in zip(response, row["answer"])) / 4 + response.count("1") / 10
"""


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    """The folder in which the package is installed, as its author would install it."""
    folder = tmp_path_factory.mktemp("outside")
    source = folder / "src" / "rlhf_plugin_outside"
    source.mkdir(parents=True)
    (folder / "pyproject.toml").write_text(PYPROJECT)
    (source / "__init__.py").write_text(MODULE)
    target = folder / "installed"
    python("-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index",
           "--disable-pip-version-check", "--target", target, folder)  # fmt: skip
    return target


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    write_tiny_model(folder / "model", hidden_size=16, num_layers=1, num_heads=2)
    (folder / "reward.py").write_text(REWARD)
    (folder / "run.toml").write_text(CONFIG)
    held_out = [{"prompt": f"{n:04d}=", "answer": f"{n:04d}"[::-1]} for n in (7, 123, 4561)]
    (folder / "held.jsonl").write_text("".join(json.dumps(row) + "\n" for row in held_out))
    return folder


def python(*words, **environment):
    done = subprocess.run(
        [sys.executable, *map(str, words)],
        env={**os.environ, "OMP_NUM_THREADS": "1", **{k: str(v) for k, v in environment.items()}},
        capture_output=True,
        text=True,
        check=False,
        timeout=HANG_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_its_components_keep_the_promises_of_their_kinds(package):
    shown = python("-m", "rlhf_cli.main", "check", "rlhf-plugin-outside", PYTHONPATH=package)

    for component in (
        "half_solved",
        "numbers",
        "steps",
        "stairs",
        "forgiving",
        "ones",
        "nine_events",
    ):
        assert component in shown
    assert "FAILED" not in shown


@pytest.mark.slow
def test_a_run_with_its_components_is_killed_and_resumes_to_the_same_weights(package, workspace):
    def train(output, *flags, fault=""):
        words = ["train", "-c", "run.toml", "--output", output, *flags]
        see = partial(sys.path.insert, 0, str(package))
        ended = run_in_a_fork(workspace, output, words, fault=fault, prepare=see)
        return os.waitstatus_to_exitcode(ended)

    assert train("whole") == 0, (workspace / "whole.log").read_text()
    assert train("killed", fault="train:4") == -signal.SIGKILL
    assert train("killed", "--resume", "auto") == 0, (workspace / "killed.log").read_text()

    whole, killed = workspace / "whole", workspace / "killed"
    assert metrics_without_times(killed) == metrics_without_times(whole)
    assert weights_digest(killed) == weights_digest(whole)
    played = [(run / "eval_samples.jsonl").read_text() for run in (whole, killed)]
    assert played[0] == played[1]
    sampled = [(run / "samples.jsonl").read_text() for run in (whole, killed)]
    assert sampled[0] == sampled[1]
    parts = [json.loads(line)["step_rewards"] for line in sampled[0].splitlines()]
    assert any(len([part for _, part in steps if part]) > 1 for steps in parts), "within an answer"
    ones = [line["eval"] for line in metrics_without_times(whole) if "eval" in line]
    assert [0.0 <= values["eval/held/T1/ones"] <= 1.0 for values in ones] == [True] * 3
    balance = replay(killed / "ledger.jsonl")
    assert balance.unsettled() == []
    drawn = [tuple(map(int, group.split("."))) for group in balance.planned]
    assert len(drawn) == 24
    # Six prompts are an epoch, so 24 draws in order would be four of each; the sampler prefers some.
    numbers = [sum(prompt == index for _, prompt in drawn) for index in range(6)]
    assert max(numbers) > 4
    first, *later = [
        line["metrics"]["kl/ref"] for line in metrics_without_times(whole) if "metrics" in line
    ]
    # The policy begins as its own reference, and then leaves it.
    assert first == 0.0
    assert later[-1] > 0.0
    rates = [
        line["metrics"]["policy/lr"] for line in metrics_without_times(whole) if "metrics" in line
    ]
    # A warm-up of one of eight updates, then 1 - k/3 after k of two stairs: at x = 0/7, 1/7, ..., 4/7, and no more: the
    # observer ends the run at its ninth event, six steps and three evaluations.
    assert rates == pytest.approx([0.5e-3, 1e-3, 1e-3, 1e-3, 1e-3, 2e-3 / 3])
    said = "ended by nine_events (rlhf-plugin-outside 3.1.0): heard 9 events"
    for run in (whole, killed):
        assert [line["end"] for line in metrics_without_times(run) if "end" in line] == [said]
        assert (run / "model").is_dir()
    assert train("killed", "--resume", "auto") == 0
    assert metrics_without_times(killed) == metrics_without_times(whole)
