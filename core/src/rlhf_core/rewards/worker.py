"""Worker process of one reward: ``python -m rlhf_core.rewards.worker FD``, which ``keeper.py`` starts.

The worker loads plugins, builds the reward from its reference, and answers lines of JSON on the socket ``FD``. Standard
output is not part of the protocol, so user code may print. Only the reward may import torch.
"""

from __future__ import annotations

import asyncio
import faulthandler
import os
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from ..component import ComponentRef
from ..contracts.reward import Reward
from ..plugins import load
from . import wire
from .checking import score_checked
from .keeper import PR_SET_PDEATHSIG, SIGKILL, prctl
from .outcome import problem_of


def main(descriptor: int) -> int:
    """Answer requests until the run closes the socket; return the exit code."""
    prctl(PR_SET_PDEATHSIG, SIGKILL)
    _volunteer_for_the_oom_killer()
    _outlast_signals_to_the_job()
    faulthandler.enable()
    # User code may print lone surrogates, and its last line must be flushed if the process dies.
    sys.stdout.reconfigure(errors="backslashreplace", line_buffering=True)  # type: ignore[union-attr]
    os.set_inheritable(descriptor, False)
    with socket.socket(fileno=descriptor) as connection, connection.makefile("rb") as lines:
        start = wire.decode(lines.readline())
        sys.path[:] = start["path"]
        send = _sender(connection)
        try:
            reward = _build(start["reward"])
        except BaseException as error:
            send(wire.answer_line(0, problem_of(error)))
            return 1
        send(wire.answer_line(0, []))
        with asyncio.Runner() as runner:
            for line in lines:
                message = wire.decode(line)
                answer = runner.run(score_checked(reward, wire.requests_of(message)))
                send(wire.answer_line(message["call"], answer))
    return 0


def _build(reference: dict[str, Any]) -> Reward:
    reward: Reward = load().build(ComponentRef(**reference))
    return reward


def _sender(connection: socket.socket) -> Callable[[bytes], None]:
    owner = os.getpid()

    def send(line: bytes) -> None:
        if os.getpid() != owner:
            # User code forked and the child returned here; only the parent may answer.
            os._exit(0)
        connection.sendall(line)

    return send


def _outlast_signals_to_the_job() -> None:
    """Ignore SIGTERM and SIGHUP: a scheduler sends them to every process of a job, and the run decides when to end."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
        # Children of user code end by these signals as usual; those started by exec lose the handler anyway.
        os.register_at_fork(after_in_child=partial(signal.signal, number, signal.SIG_DFL))


def _volunteer_for_the_oom_killer() -> None:
    # When memory runs out, the kernel should end the reward, which can be started again, and not the training process.
    with suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
        file.write("1000")


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
