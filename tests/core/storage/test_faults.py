"""The plan of a fault kills one process at one point, and nothing without it."""

import signal
import subprocess
import sys

import pytest

from rlhf_core.storage.faults import ENVIRONMENT_VARIABLE, fault_point

PROGRAM = """
from rlhf_core.storage.faults import fault_point
for step in (1, 2, 3):
    for phase in ("train", "save"):
        fault_point(phase, step)
        print(phase, step, flush=True)
"""


def test_the_process_dies_when_it_first_reaches_the_point(monkeypatch):
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, "save:2")

    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)

    assert done.returncode == -signal.SIGKILL
    assert done.stdout.splitlines() == ["train 1", "save 1", "train 2"]


@pytest.mark.parametrize("plan", [None, "", "save:20", "train:2:0", "2"])
def test_other_plans_kill_nobody(monkeypatch, plan):
    if plan is None:
        monkeypatch.delenv(ENVIRONMENT_VARIABLE, raising=False)
    else:
        monkeypatch.setenv(ENVIRONMENT_VARIABLE, plan)

    fault_point("save", 2)
