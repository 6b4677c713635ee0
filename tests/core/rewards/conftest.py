import contextlib
import os
import subprocess
import time
from pathlib import Path

import pytest

from rlhf_core.config.resolved import RewardOptions, Selection
from rlhf_core.contracts import RewardRequest, Turn
from rlhf_core.plugins import load


@pytest.fixture
def probe(monkeypatch):
    """``probe(behavior, **reward_options)``: a selection of the misbehaving reward."""
    # Workers get sys.path from the run and load plugins themselves.
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    monkeypatch.setenv("RLHF_PLUGINS", "probe_rewards")
    registered = load().get("rlhf_rewards", "probe")

    def select(behavior="good", *, name="probe", file="", **options):
        return Selection(
            slot="reward.use",
            section=f"reward.{name}",
            registered=registered,
            options=registered.validate({"behavior": behavior, "file": str(file)}),
            reward=RewardOptions(**options),
        )

    return select


@pytest.fixture
def requests_for():
    """``requests_for(rows)``: one request per row, whose response is as long as its position."""

    def make(rows):
        return [
            RewardRequest(
                uid=f"0.{index}.0.0",
                row=row,
                prompt="p",
                response="x" * index,
                token_ids=(1, 2, 3),
                action_mask=(False, True, True),
                turns=(Turn(start=1, end=3),),
                truncated=False,
            )
            for index, row in enumerate(rows)
        ]

    return make


@pytest.fixture
def no_process_left():
    """Fail when a process that was started during the test is still there after it."""
    before = set(_family(os.getpid()))
    yield
    give_up = time.monotonic() + 3
    while (left := set(_family(os.getpid())) - before) and time.monotonic() < give_up:
        time.sleep(0.02)
    assert not left, [_command(pid) for pid in left]


def _family(root):
    """Processes below ``root``, children of children included."""
    table = subprocess.run(
        ["ps", "-e", "-o", "pid=,ppid="], capture_output=True, text=True, check=True
    )
    parents = dict(map(int, line.split()) for line in table.stdout.splitlines())
    below = {root}
    while more := {pid for pid, parent in parents.items() if parent in below} - below:
        below |= more
    # ps itself was one of them.
    return {pid for pid in below - {root} if Path(f"/proc/{pid}").exists()}


def _command(pid):
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")
    return pid
