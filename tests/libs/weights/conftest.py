"""Ends of a link in processes of their own, as they are used."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from tests.deadlines import HANG_S

from rlhf_core import RLHFError
from rlhf_weights import (
    Invitation,
    ReceivingLink,
    SendingLink,
    WeightPlan,
    plan_weights,
)

RECEIVE = """
import hashlib, json, os, sys, time, torch
from rlhf_weights import Invitation, ReceivingLink
plain, index, steps = json.loads(sys.argv[1]), int(sys.argv[2]), json.loads(sys.argv[3])
if any(misbehavior == "hang" for _, misbehavior in steps):
    print("imported", flush=True)
link = ReceivingLink(Invitation.from_plain(plain), index, torch.device("cpu"))
try:
    link.connect()
    for version, misbehavior in steps:
        digest = hashlib.sha256()
        with link.update(version) as buckets:
            for number, (slots, data) in enumerate(buckets):
                if number == 1 and misbehavior == "hang":
                    print("hanging", flush=True)
                    time.sleep(36000)
                if number == 1 and misbehavior == "die":
                    os._exit(9)
                if number == 1 and misbehavior == "raise":
                    raise ValueError("does not fit")
                for slot in slots:
                    digest.update(slot.name.encode())
                    digest.update(slot.view(data).reshape(-1).view(torch.uint8).numpy())
        print(digest.hexdigest(), flush=True)
    link.close()
except Exception as error:
    print(f"{type(error).__name__}: {error}", flush=True)
"""


@pytest.fixture
def weights() -> dict[str, torch.Tensor]:
    """About 5 MiB, so that operations do not end in the kernel's buffers."""
    draw = torch.Generator().manual_seed(0)
    sizes = {"a": (300, 700), "b": (70_000,), "scalar": (), "empty": (0, 4), "large": (1000, 900)}
    return {name: torch.randn(size, generator=draw) for name, size in sizes.items()} | {
        "half": torch.randn(5, 3, generator=draw).to(torch.bfloat16),
        "strided": torch.randn(60, 80, generator=draw).t(),
    }


@pytest.fixture
def plan(weights: dict[str, torch.Tensor]) -> WeightPlan:
    """Four buckets."""
    plan = plan_weights([weights], 1 << 20)
    assert len(plan.buckets) >= 3
    return plan


@pytest.fixture
def link(plan: WeightPlan) -> Iterator[Callable[..., SendingLink]]:
    made: list[SendingLink] = []

    def make(path: str, num_receivers: int = 1, timeout_s: float = HANG_S) -> SendingLink:
        made.append(
            SendingLink(
                "test",
                plan=plan,
                path=path,  # type: ignore[arg-type]
                num_receivers=num_receivers,
                device=torch.device("cpu"),
                host="127.0.0.1",
                timeout_s=timeout_s,
            )
        )
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def receiver() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start a receiving process: of each update the version, and maybe what it does wrong."""
    started: list[subprocess.Popen[str]] = []

    def start(invitation: Invitation, index: int, *steps: Any) -> subprocess.Popen[str]:
        plain = json.dumps(invitation.to_plain())
        process = subprocess.Popen(
            [sys.executable, "-c", RECEIVE, plain, str(index), json.dumps(steps)],
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def listener() -> Iterator[Callable[[Invitation, int], ReceivedText]]:
    """Start a receiver of one update in a thread, for tests of what the sender or the receiver refuses: a process would
    import torch anew. Give it before ``link``, which has to end first."""
    started: list[ReceivedText] = []

    def start(invitation: Invitation, version: int) -> ReceivedText:
        started.append(ReceivedText(invitation, version))
        started[-1].start()
        return started[-1]

    yield start
    for thread in started:
        thread.join(HANG_S)
        assert not thread.is_alive()


class ReceivedText(threading.Thread):
    """A receiving end, and what its error says."""

    def __init__(self, invitation: Invitation, version: int) -> None:
        super().__init__(daemon=True)
        self._invitation, self._version = invitation, version
        self._error = ""

    def run(self) -> None:
        link = ReceivingLink(self._invitation, 0, torch.device("cpu"))
        try:
            link.connect()
            with link.update(self._version) as buckets:
                for _ in buckets:
                    pass
        except RLHFError as error:
            self._error = str(error)
        finally:
            link.close()

    def error(self) -> str:
        self.join(HANG_S)
        return self._error
