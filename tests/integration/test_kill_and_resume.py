"""Kill a run with SIGKILL at every step and phase, resume it, and compare with the run that was left alone.

The run has everything that carries state: a critic, a reference with an adaptive KL in the reward, two minibatches and
two inner epochs, an averaged copy of the weights, evaluation, best checkpoint and export.
"""

import hashlib
import json
import os
import signal
import sys
from pathlib import Path

import pytest

from rlhf_core.loop.faults import ENVIRONMENT_VARIABLE, PHASES
from rlhf_core.loop.ledger import replay
from rlhf_core.testing.tiny import write_tiny_model

STEPS = 12
CHECKPOINT_EVERY = 3
POINTS = [
    (phase, step)
    for step in range(1, STEPS + 1)
    for phase in ("generate", "reward", "score", "train")
]
POINTS += [("save", step) for step in range(CHECKPOINT_EVERY, STEPS + 1, CHECKPOINT_EVERY)]
POINTS += [("export", STEPS)]

CONFIG = f"""
seed = 7
[model]
path = "model"
[data]
train = ["train.jsonl"]
max_prompt_tokens = 16
[rollout]
batch_size = 4
n_samples_per_prompt = 4
max_new_tokens = 6
[reward]
use = ["reward.py:score"]
[algo.advantage]
estimator = "gae"
[algo.kl]
mode = "reward"
coef = 0.05
target = 0.1
horizon = 64
[actor]
ema = 0.9
lr_schedule = "cosine"
[actor.adam]
lr = 1e-3
[critic.adam]
lr = 1e-3
[train]
steps = {STEPS}
batch_size = 8
inner_epochs = 2
[eval]
fraction = 0.2
every = 4
[checkpoint]
every = {CHECKPOINT_EVERY}
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
def workspace(tmp_path_factory):
    folder = tmp_path_factory.mktemp("killed")
    write_tiny_model(folder / "model", hidden_size=16, num_layers=1, num_heads=2)
    rows = [{"prompt": f"{n:04d}=", "answer": f"{n:04d}"[::-1]} for n in range(0, 9000, 400)]
    (folder / "train.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    (folder / "reward.py").write_text(REWARD)
    (folder / "run.toml").write_text(CONFIG)
    return folder


def train_in_a_fork(workspace: Path, output: str, *flags: str, fault: str = "") -> int:
    """Run ``rlhf train`` in a forked child, so that torch is imported once; return the wait status."""
    child = os.fork()
    if child == 0:
        code = 70
        try:
            os.chdir(workspace)
            os.environ[ENVIRONMENT_VARIABLE] = fault
            log = os.open(f"{output}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(log, 1)
            os.dup2(log, 2)
            sys.stdout = sys.stderr = os.fdopen(log, "w", buffering=1)
            from rlhf_cli.main import main

            code = main(["train", "-c", "run.toml", "--output", output, *flags])
        finally:
            os._exit(code)
    return os.waitpid(child, 0)[1]


def metrics_without_times(run: Path) -> list[dict]:
    lines = (run / "metrics.jsonl").read_text().splitlines()
    drop = ("time_s", "timing")
    return [{k: v for k, v in json.loads(line).items() if k not in drop} for line in lines]


def weights_digest(run: Path) -> dict[str, str]:
    return {
        name: hashlib.sha256((run / name / "model.safetensors").read_bytes()).hexdigest()
        for name in ("model", "model_ema")
    }


@pytest.fixture(scope="module")
def uninterrupted(workspace):
    import torch
    import transformers  # noqa: F401  imported before forking, so that every child starts at once

    assert torch.get_num_threads()
    status = train_in_a_fork(workspace, "whole")
    assert status == 0, (workspace / "whole.log").read_text()
    return metrics_without_times(workspace / "whole"), weights_digest(workspace / "whole")


def test_the_same_seed_twice_gives_identical_weights_and_metrics(workspace, uninterrupted):
    status = train_in_a_fork(workspace, "again")

    assert status == 0
    assert metrics_without_times(workspace / "again") == uninterrupted[0]
    assert weights_digest(workspace / "again") == uninterrupted[1]


def check_killed_and_resumed(workspace, uninterrupted, phase, step):
    output = f"killed-{phase}-{step}"
    run = workspace / output

    killed = train_in_a_fork(workspace, output, fault=f"{phase}:{step}")
    assert os.WIFSIGNALED(killed), (workspace / f"{output}.log").read_text()
    assert os.WTERMSIG(killed) == signal.SIGKILL

    resumed = train_in_a_fork(workspace, output, "--resume", "auto")
    assert resumed == 0, (workspace / f"{output}.log").read_text()

    assert metrics_without_times(run) == uninterrupted[0]
    assert weights_digest(run) == uninterrupted[1]
    assert replay(run / "ledger.jsonl").unsettled() == []


@pytest.mark.parametrize(
    "point", [("generate", 2), ("train", 5), ("save", 6), ("export", STEPS)], ids=str
)
def test_a_killed_run_resumes_to_the_same_numbers(workspace, uninterrupted, point):
    check_killed_and_resumed(workspace, uninterrupted, *point)


@pytest.mark.slow
@pytest.mark.parametrize("point", POINTS, ids=str)
def test_a_run_killed_at_any_point_resumes_to_the_same_numbers(workspace, uninterrupted, point):
    check_killed_and_resumed(workspace, uninterrupted, *point)


def test_every_phase_is_covered():
    assert {phase for phase, _ in POINTS} == set(PHASES)


def test_a_second_run_into_the_folder_is_refused(workspace, uninterrupted):
    status = train_in_a_fork(workspace, "whole")

    assert os.waitstatus_to_exitcode(status) == 2
    assert "--resume auto" in (workspace / "whole.log").read_text()


def test_an_interrupted_run_saves_and_resumes_to_the_same_numbers(workspace, uninterrupted):
    """SIGTERM in the middle: the step is finished, a checkpoint is written, and the exit code says so."""
    output = "interrupted"
    child = os.fork()
    if child == 0:
        os.chdir(workspace)
        os.execv(sys.executable, [sys.executable, "-c", INTERRUPTED, output])
    status = os.waitpid(child, 0)[1]
    assert os.waitstatus_to_exitcode(status) == 130

    assert train_in_a_fork(workspace, output, "--resume", "auto") == 0

    assert metrics_without_times(workspace / output) == uninterrupted[0]
    assert weights_digest(workspace / output) == uninterrupted[1]


INTERRUPTED = """
import os, signal, sys
from rlhf_core.loop import trainer
whole = trainer.Trainer.step
async def step_and_signal(self):
    result = await whole(self)
    if self.state.step == 5:
        os.kill(os.getpid(), signal.SIGTERM)
    return result
trainer.Trainer.step = step_and_signal
from rlhf_cli.main import main
sys.exit(main(["train", "-c", "run.toml", "--output", sys.argv[1]]))
"""
