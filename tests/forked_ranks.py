"""Ranks as forks of one process that has imported what they need.

A processor takes seven seconds to import what a rank needs, and two ranks go through each of many ways. The process
is ``python forked_ranks.py PROGRAM MODULE...``: it imports a rank's program, which has ``WAYS`` and ``go_through_all``,
and further modules. Each line of its input is JSON, ``[WAY, MODELS, OUT, PORT]``, and it answers with the exit codes of
the ranks when all have ended. A fork ends like an interpreter of its own, so that tests find what fails at its end.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

WAIT_S = 3600
"""That of a hang: ranks go through many scenarios, on a machine that may have other work."""


@contextlib.contextmanager
def forking(program: Path, *modules: str) -> Iterator[Callable[[str, Path, Path], list[int]]]:
    """Start the process; what the context gives has ranks go through a way, and returns their exit codes."""
    process = subprocess.Popen(
        [sys.executable, "-W", "error", __file__, str(program), *modules],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )

    def go_through(way: str, models: Path, out: Path) -> list[int]:
        process.stdin.write(json.dumps([way, str(models), str(out), free_port()]) + "\n")
        process.stdin.flush()
        assert select.select([process.stdout], [], [], WAIT_S)[0], "the ranks hang"
        answer = process.stdout.readline()
        return json.loads(answer) if answer else [process.wait()]

    with process:
        try:
            yield go_through
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def free_port() -> int:
    """Return a port at which nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def main(program: str, *modules: str) -> None:
    """Fork the ranks that each line of the input asks for."""
    sys.path.insert(0, str(Path(program).parent))
    ranks_program = importlib.import_module(Path(program).stem)
    for module in modules:
        importlib.import_module(module)
    for line in sys.stdin:
        name, models, out, port = json.loads(line)
        way = ranks_program.WAYS[name]
        ranks = []
        for rank in range(way.world_size):
            child = os.fork()
            if child == 0:
                _become(rank, way.world_size, port, Path(out) / f"log{rank}")
                ranks_program.go_through_all(way, Path(models), Path(out))
                return
            ranks.append(child)
        codes = [os.waitstatus_to_exitcode(os.waitpid(rank, 0)[1]) for rank in ranks]
        print(json.dumps(codes), flush=True)


def _become(rank: int, world_size: int, port: int, log: Path) -> None:
    """Have this process be a rank, of which a file tells."""
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(file, stream)
    place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world_size}
    place |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in place.items()})


if __name__ == "__main__":
    # A folder of tests is the first of the path, where its modules would hide others.
    sys.path.pop(0)
    main(*sys.argv[1:])
