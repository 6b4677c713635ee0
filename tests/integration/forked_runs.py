"""Small runs in forked children, with everything that carries state, and what is compared of them.

A critic, a reference with an adaptive KL in the reward, two minibatches and two inner epochs, an averaged copy of the
weights, evaluation, checkpoints and export.
"""

import gc
import hashlib
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NoReturn

import torch

from rlhf_core.storage.faults import ENVIRONMENT_VARIABLE
from rlhf_core.storage.run_folder import RunFolder
from rlhf_testing.tiny import write_tiny_model

STEPS = 12
CHECKPOINT_EVERY = 3

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


def write_workspace(folder: Path) -> Path:
    """Write model, data, reward and configuration into ``folder``; Transformers is imported, so that forks start at
    once."""
    import transformers  # noqa: F401

    write_tiny_model(folder / "model", hidden_size=16, num_layers=1, num_heads=2)
    rows = [{"prompt": f"{n:04d}=", "answer": f"{n:04d}"[::-1]} for n in range(0, 9000, 400)]
    (folder / "train.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    (folder / "reward.py").write_text(REWARD)
    (folder / "run.toml").write_text(CONFIG)
    return folder


def _as_is() -> None:
    """Change nothing."""


def train_in_a_fork(
    workspace: Path, output: str, *flags: str, fault: str = "", prepare: Callable[[], None] = _as_is
) -> int:
    """Run ``rlhf train`` with the configuration above in a forked child; return the wait status."""
    words = ["train", "-c", "run.toml", "--output", output, *flags]
    return run_in_a_fork(workspace, output, words, fault=fault, prepare=prepare)


def run_in_a_fork(
    workspace: Path,
    name: str,
    words: list[str],
    *,
    fault: str = "",
    prepare: Callable[[], None] = _as_is,
) -> int:
    """Run ``rlhf WORDS`` in a forked child, so that torch is imported once; return the wait status.

    Args:
        name: of the log file.
        prepare: what the child does before.
    """
    child = os.fork()
    if child == 0:
        log = os.open(workspace / f"{name}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        _be_the_command(workspace, log, words, fault, prepare)
    return os.waitpid(child, 0)[1]


def told_by_a_fork(
    workspace: Path, words: list[str], *, prepare: Callable[[], None] = _as_is
) -> tuple[int, str]:
    """Run ``rlhf WORDS`` in a forked child; return its exit code, and what it writes to a pipe."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        _be_the_command(workspace, writing, words, "", prepare)
    os.close(writing)
    with os.fdopen(reading, errors="replace") as pipe:
        told = pipe.read()
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), told


def _be_the_command(
    workspace: Path, log: int, words: list[str], fault: str, prepare: Callable[[], None]
) -> NoReturn:
    """Be ``rlhf WORDS`` in this process, which writes to an open file and ends."""
    code = 70
    try:
        os.chdir(workspace)
        os.environ[ENVIRONMENT_VARIABLE] = fault
        os.dup2(log, 1)
        os.dup2(log, 2)
        sys.stdout = sys.stderr = os.fdopen(log, "w", buffering=1)
        # What earlier tests left behind may own threads that a fork does not have; their destructors would crash.
        gc.freeze()
        # A fork has no thread of the pool that its parent may have made, and would wait for them forever.
        torch.set_num_threads(1)
        from rlhf_cli.main import main

        prepare()
        code = main(words)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


QUIET = ("--log.progress", "off", "--log.tensorboard", "false", "--log.curve", "false")
"""Flags of a run whose observers write nothing."""


def records(run: Path, kind: str) -> list[dict]:
    """The entries ``metrics`` or ``eval`` of a run's records, in their order."""
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [line[kind] for line in lines if kind in line]


def metrics_without_times(run: Path) -> list[dict]:
    lines = (run / "metrics.jsonl").read_text().splitlines()
    drop = ("time_s", "timing")
    return [{k: v for k, v in json.loads(line).items() if k not in drop} for line in lines]


def weights_digest(run: Path) -> dict[str, str]:
    """Digest of each file of weights of the exported model, and of its average where there is one."""
    return {
        str(file.relative_to(run)): hashlib.sha256(file.read_bytes()).hexdigest()
        for name in ("model", "model_ema")
        for file in sorted((run / name).glob("*.safetensors"))
    }


def saved_steps(run: Path) -> list[int]:
    return [int(path.name.removeprefix("step-")) for path in (run / "checkpoints").glob("step-*")]


def how_to_resume(run: Path) -> str:
    """``auto``, or ``restart`` for a run that was killed before its first checkpoint: its steps are done again only if
    that is asked for."""
    return "restart" if RunFolder(run).no_checkpoint() else "auto"


def check_that_killed_runs_resume(
    folder: Path, words: list[str], phase: str, steps: Iterable[int]
) -> None:
    """Compare ``rlhf WORDS``, killed in a phase of each of these steps and resumed, with the same run left alone: equal
    metrics and weights, to the bit. The runs are ``PHASE`` with the step behind it, and ``whole``."""
    assert run_in_a_fork(folder, "whole", [*words, "--output", "whole"]) == 0
    assert weights_digest(folder / "whole")
    for step in steps:
        name = f"{phase}{step}"
        killed = run_in_a_fork(folder, name, [*words, "--output", name], fault=f"{phase}:{step}")
        assert os.WIFSIGNALED(killed)
        assert os.WTERMSIG(killed) == signal.SIGKILL
        again = [*words, "--output", name, "--resume", how_to_resume(folder / name)]
        assert run_in_a_fork(folder, name, again) == 0

        assert metrics_without_times(folder / name) == metrics_without_times(folder / "whole")
        assert weights_digest(folder / name) == weights_digest(folder / "whole")


def seen_and_new(path="rows.jsonl"):
    """``--eval.data`` with the rows of a file, called ``seen``, and with one of another prompt, called ``new``: a run
    refuses held-out rows all of which it trains on."""
    row = json.loads(Path(path).read_text().splitlines()[0])
    new = Path(path).with_name("new.jsonl")
    new.write_text(json.dumps(row | {"prompt": "8" + row["prompt"]}) + "\n")
    return ["--eval.data", f"seen={path}", f"new={new}"]
