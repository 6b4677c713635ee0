"""A second signal ends a run within seconds, with its exit code, and nothing that the run started is left."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.deadlines import HANG_S, PATIENT_S
from tests.signals import send_and_wait

RUN = [
    *(sys.executable, "-m", "rlhf_cli.main", "train", "--model", "model", "--data", "mine.jsonl"),
    *("--rollout.batch_size", "3", "--rollout.n_samples_per_prompt", "4"),
    *("--rollout.max_new_tokens", "4", "--data.max_prompt_tokens", "8", "--output", "run"),
    *("--log.tensorboard", "false", "--log.curve", "false", "--log.progress", "off"),
]
STUBBORN = """
import pathlib, signal, subprocess, time
for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, signal.SIG_IGN)
subprocess.Popen(["sleep", "3611"], start_new_session=True)
pathlib.Path({held!r}).touch()
time.sleep(3600)
"""
"""Code that ends long after a hang, hears no signal, and has a child that left its session."""

ENVIRONMENT = """
from rlhf_core.contracts import Observation


class Holding:
    def __init__(self, config):
        pass

    async def reset(self, task, seed):
        return Observation(text="7?")

    async def step(self, action):
        exec({stubborn!r})

    async def close(self):
        pass
"""


def descendants(pid):
    """Ids of all processes below a process, with when they started, so that a new process is none of them."""
    parents = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (folder / "stat").read_text().rpartition(")")[2].split()
            parents[int(folder.name)] = (int(words[1]), words[19])
    found, level = {}, [pid]
    while level:
        level = [child for child, (parent, _) in parents.items() if parent in level]
        found |= {child: parents[child][1] for child in level}
    return found


def alive(processes):
    for pid, start in processes.items():
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            if words[19] == start and words[0] != "Z":
                yield pid


def embedded(workspace, stubborn):
    (workspace / "my_reward.py").write_text(f"def score(response):\n    exec({stubborn!r})\n")
    return ["--reward", "my_reward.py:score", "--reward.score.timeout_s", str(PATIENT_S)]


def embedded_without_a_worker(workspace, stubborn):
    hold = (
        f"import pathlib, time\npathlib.Path({str(workspace / 'held')!r}).touch()\ntime.sleep(3600)"
    )
    return [*embedded(workspace, hold), "--reward.score.isolate", "false"]


def an_agent_that_is_a_command(workspace, stubborn):
    (workspace / "agent.py").write_text(stubborn)
    options = f'agent = "command"\ncommand = ["{sys.executable}", "agent.py"]\n'
    (workspace / "agents.toml").write_text(f"[rollout.endpoint]\n{options}")
    return ["-c", "agents.toml", "--executor", "endpoint", "--rollout.max_length", "24"]


def an_environment_in_a_worker(workspace, stubborn):
    (workspace / "holding.py").write_text(ENVIRONMENT.format(stubborn=stubborn))
    return [
        *("--executor", "multi_turn", "--rollout.max_length", "24"),
        *("--env", "holding.py:Holding", "--env.holding.isolation", "process"),
        *("--env.holding.step_timeout_s", str(PATIENT_S)),
        *("--rollout.multi_turn.environment_timeout_s", str(PATIENT_S)),
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "number"),
    [
        (embedded, signal.SIGINT),
        (embedded_without_a_worker, signal.SIGTERM),
        (an_agent_that_is_a_command, signal.SIGTERM),
        (an_environment_in_a_worker, signal.SIGINT),
    ],
    ids=lambda value: getattr(value, "__name__", None) or value.name,
)
def test_a_second_signal_ends_a_run_and_all_that_it_started(workspace, kind, number):
    held = workspace / "held"
    options = kind(workspace, STUBBORN.format(held=str(held)))
    told = workspace / "told"
    with told.open("wb") as output:
        process = subprocess.Popen([*RUN, *options], stderr=output, start_new_session=True)
    try:
        give_up = time.monotonic() + HANG_S
        while not held.exists():
            assert process.poll() is None, told.read_text()
            assert time.monotonic() < give_up, told.read_text()
            time.sleep(0.05)
        started = descendants(process.pid)

        send_and_wait(process.pid, number)
        process.send_signal(number)
        process.wait(HANG_S)

        give_up = time.monotonic() + HANG_S
        while left := list(alive(started)):
            assert time.monotonic() < give_up, left
            time.sleep(0.05)
        assert process.returncode == 128 + number, told.read_text()
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
