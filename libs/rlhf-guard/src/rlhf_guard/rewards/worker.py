"""Worker process of one reward: ``python -m rlhf_guard.rewards.worker FD``, which the keeper starts.

The worker loads the reward's plugin, builds the reward from its reference, and answers lines of JSON on the socket
``FD``. Only the reward may import torch.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from rlhf_core.component import ComponentRef
from rlhf_core.contracts.reward import Reward, RewardRequest
from rlhf_core.plugins import load
from rlhf_core.problem import problem_of

from ..processes import marked_json
from ..processes.inside import end_forked_child, settle
from . import wire
from .checking import require_score, score_checked


def main(descriptor: int) -> int:
    """Answer requests until the run closes the socket; return the exit code."""
    with settle(descriptor) as connection, connection.makefile("rb") as lines:
        start = marked_json.decode(lines.readline())
        sys.path[:] = start["path"]
        send = _sender(connection)
        try:
            reward = _build(start["reward"])
        except BaseException as error:
            send(wire.answer_line(0, problem_of(error)))
            return 1
        send(wire.answer_line(0, []))
        with asyncio.Runner() as runner:
            for call, requests in _calls(lines):
                send(wire.answer_line(call, runner.run(score_checked(reward, requests))))
    return 0


def _calls(lines: Iterable[bytes]) -> Iterator[tuple[int, list[RewardRequest]]]:
    """Yield number and requests of each call that has come as a whole. Lines of a call that another one follows were
    given up by the run."""
    call, requests = 0, list[RewardRequest]()
    for line in lines:
        message = marked_json.decode(line)
        if message["call"] != call:
            call, requests = message["call"], []
        requests += wire.requests_of(message)
        if message["last"]:
            yield call, requests
            requests = []


def _build(reference: dict[str, Any]) -> Reward:
    ref = ComponentRef(**reference)
    return require_score(load(component=ref.name).build(ref))


def _sender(connection: socket.socket) -> Callable[[bytes], None]:
    owner = os.getpid()

    def send(line: bytes) -> None:
        end_forked_child(owner)
        connection.sendall(line)

    return send


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
