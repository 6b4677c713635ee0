"""Whole runs in which generation goes ahead of training: numbers, kills, learning."""

import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from tests.cases import one_in

from rlhf_plugin_local.engine.batch import Batch
from rlhf_trainer.durable.records import replay
from rlhf_trainer.loop.rl_trainer import RLTrainer

from .forked_runs import QUIET, run_in_a_fork

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "reverse_digits"

SMALL = ("--steps", "6", "--runtime.local.threads", "1")
COPY = ("--engine.embedded.weights", "copy")
BESIDE = ("--engine.embedded.overlap", "always")
AHEAD = ("--rollout.max_staleness", "2")
IN_FLIGHT = (*AHEAD, "--rollout.in_flight_updates")
OVERSAMPLED = (*IN_FLIGHT, "--rollout.oversampling", "1.5", "--rollout.concurrency", "5")
MODES = {
    "shared": AHEAD,
    "shared, in flight": IN_FLIGHT,
    "copied": (*AHEAD, *COPY),
    "copied, in flight": (*IN_FLIGHT, *COPY),
    "oversampled": (*OVERSAMPLED, *COPY),
    "beside training": (*AHEAD, *BESIDE),
    "beside training, in flight": (*IN_FLIGHT, *BESIDE),
}


def digest(run: Path) -> str:
    return hashlib.sha256((run / "model" / "model.safetensors").read_bytes()).hexdigest()


def numbers(lines: list[dict]) -> list[dict]:
    return [line["metrics"] for line in lines if "metrics" in line]


def test_on_policy_slots_and_order_change_no_number(train, workspace):
    """Prompts that wait for a slot, or start in another order, are the same to the bit once they are all there."""
    whole = numbers(train("whole", *SMALL))

    for slots in ("1", "3"):
        assert numbers(train(f"slots{slots}", *SMALL, "--rollout.concurrency", slots)) == whole
        assert digest(workspace / f"slots{slots}") == digest(workspace / "whole")


@pytest.mark.parametrize("flags", one_in(3, MODES.values()), ids=MODES)
def test_a_run_ahead_ends_with_balanced_books_within_the_bound(train, workspace, flags):
    steps = numbers(train("run", *SMALL, *flags))

    assert len(steps) == 6
    assert all(step["rollout/staleness_max"] <= 2 for step in steps)
    balance = replay(workspace / "run" / "ledger.jsonl")
    assert balance.unsettled() == []
    assert balance.trained.total() == 6 * 3 * 4


def test_samples_of_older_weights_are_weighed(train):
    """The ratio is to the sampler's policy; with on-policy data it would be 1 at each step of one update."""
    flags = ("--reward", "vary.py:vary", "--actor.adam.lr", "0.01")
    steps = numbers(train("run", *SMALL, *AHEAD, *flags))

    stale = [step for step in steps if step["rollout/staleness_max"] > 0]
    assert stale
    assert all(abs(step["policy/ratio"] - 1) > 1e-4 for step in stale)


def test_training_leaves_the_engine_running_where_it_has_its_own_weights(train):
    """A run as slow in generating as in training overlaps both: the engine is busy in the phases of the trainer."""
    lines = train("run", *SMALL, *IN_FLIGHT, *COPY)

    staleness = [step["rollout/staleness_max"] for step in numbers(lines)]
    assert max(staleness) > 0
    assert all(0 <= line["timing"]["engine_idle_share"] <= 1 for line in lines)


def own_threads() -> set[str]:
    """Threads in which engine or roles compute, by name."""
    return {one.name for one in threading.enumerate() if one.name.startswith(("engine", "roles"))}


def test_a_signal_beside_training_ends_the_run_between_steps_and_it_goes_on(
    train, workspace, monkeypatch
):
    whole = RLTrainer.step

    async def step_and_signal(self):
        finished = await whole(self)
        if self.state.step == 3:
            os.kill(os.getpid(), signal.SIGTERM)
        return finished

    flags = (*SMALL, *IN_FLIGHT, *BESIDE)
    monkeypatch.setattr(RLTrainer, "step", step_and_signal)
    assert len(numbers(train("run", *flags, code=130))) == 3
    assert not own_threads()
    monkeypatch.setattr(RLTrainer, "step", whole)

    assert len(numbers(train("run", *flags, "--resume", "auto"))) == 6

    balance = replay(workspace / "run" / "ledger.jsonl")
    assert balance.unsettled() == []
    assert balance.trained.total() == 6 * 3 * 4
    assert not own_threads()


def test_an_error_beside_training_ends_the_run_by_its_name(train, monkeypatch, capsys):
    step, calls = Batch.step, []

    def broken(self):
        calls.append(threading.current_thread())
        if len(calls) == 12:
            raise ValueError("a broken kernel")
        return step(self)

    monkeypatch.setattr(Batch, "step", broken)

    train("run", *SMALL, *AHEAD, *BESIDE, code=1)

    assert "a broken kernel" in capsys.readouterr().err
    assert threading.main_thread() not in calls
    assert not own_threads()


def run_command(workspace, output, *flags, fault=""):
    words = ["train", "--model", "model", "--data", "mine.jsonl"]
    words += ["--reward", "my_reward.py:score", "--output", output]
    words += ["--rollout.n_samples_per_prompt", "4", "--rollout.max_new_tokens", "4"]
    words += ["--rollout.batch_size", "3", "--data.max_prompt_tokens", "8", *QUIET]
    words += ["--checkpoint.every", "2", *SMALL, *flags]
    return os.waitstatus_to_exitcode(run_in_a_fork(workspace, output, words, fault=fault))


INTERRUPTED = [
    (fault, mode)
    for fault in ("generate:3", "reward:4", "train:5", "save:4")
    for mode in ("shared", "copied, in flight", "oversampled", "beside training, in flight")
]


@pytest.mark.slow
@pytest.mark.parametrize("interrupted", one_in(5, INTERRUPTED), ids=str)
def test_a_killed_run_resumes_with_what_was_in_flight(workspace, interrupted):
    fault, mode = interrupted
    killed = run_command(workspace, "run", *MODES[mode], fault=fault)
    assert killed == -signal.SIGKILL
    states = sorted((workspace / "run" / "checkpoints").glob("step-*[0-9]/state.json"))
    in_flight = json.loads(states[-1].read_text())["in_flight"]

    assert run_command(workspace, "run", *MODES[mode], "--resume", "auto") == 0

    lines = (workspace / "run" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1, 2, 3, 4, 5, 6]
    balance = replay(workspace / "run" / "ledger.jsonl")
    assert balance.unsettled() == []
    assert balance.trained.total() == 6 * 3 * 4
    assert set((balance.trained + balance.dropped).values()) == {4}
    if "oversampled" not in mode:
        # Nothing that was under way was lost.
        assert len(in_flight) == 2 * 3
        assert all(balance.trained[f"{epoch}.{prompt}"] == 4 for epoch, prompt in in_flight)


@pytest.mark.slow
def test_another_run_goes_on_from_a_checkpoint_with_samples_in_flight(workspace):
    assert run_command(workspace, "one", *AHEAD, *COPY) == 0
    (workspace / "two").mkdir()
    checkpoint = workspace / "one" / "checkpoints" / "step-00000004"

    assert run_command(workspace, "two", *AHEAD, *COPY, "--resume", str(checkpoint)) == 0

    assert replay(workspace / "two" / "ledger.jsonl").unsettled() == []


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reverse_digits")
    subprocess.run([sys.executable, EXAMPLE / "prepare.py", "--output", folder], check=True)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("flags", one_in(6, MODES.values(), first=1), ids=MODES)
def test_the_quickstart_learns_ahead(prepared, tmp_path, flags):
    """0.2 of 6 at first. On-policy, the mean of steps 101 to 120 is about 2."""
    command = [sys.executable, "-m", "rlhf_cli.main", "train", "-c", str(EXAMPLE / "run.toml")]
    command += ["--model", str(prepared / "model"), "--data", str(prepared / "train.jsonl")]
    command += ["--eval.data", f"held_out={prepared / 'test.jsonl'}", "--eval.every", "0"]
    command += ["--output", str(tmp_path / "run"), "--steps", "120", "--log.progress", "off"]
    command += ["--log.curve", "false", *flags]
    subprocess.run(command, check=True, cwd=ROOT)

    lines = map(json.loads, (tmp_path / "run" / "metrics.jsonl").read_text().splitlines())
    steps = numbers(list(lines))
    rewards = [step["reward/mean"] for step in steps]
    first, last = sum(rewards[:20]) / 20, sum(rewards[-20:]) / 20
    staleness = sum(step["rollout/staleness_mean"] for step in steps) / len(steps)
    print(f"{' '.join(flags)}: reward {first:.2f} -> {last:.2f}, mean staleness {staleness:.2f}")
    assert staleness > 0.5
    assert last > first + 0.7
