"""Worker process of an environment: ``python -m rlhf_guard.environments.worker FD``, which the keeper starts.

The interpreter may be another one than the run's, with other libraries: it needs rlhf-core and rlhf-guard without
torch, and the environment's package. Protocol: ``messages``.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from functools import partial

from rlhf_core.plugins import load
from rlhf_core.problem import problem_of

from ..processes.inside import end_forked_child, settle
from .frames import FrameError, packed, read_frame
from .hello import HOOK, MadeEnvironment, open_environment
from .messages import Plain, problem_fields
from .server import EpisodeServer


def main(descriptor: int) -> int:
    """Answer requests until the run closes the socket; return the exit code."""
    with settle(descriptor) as connection, asyncio.Runner() as runner:
        try:
            return runner.run(_serve(connection))
        except SystemExit as error:
            # At once: otherwise its episodes would be told that they were cancelled, and not why.
            problem = problem_of(error)
            print(f"a task of the environment {problem.text}", *problem.where, sep="\n", flush=True)
            os._exit(error.code if isinstance(error.code, int) else 1)


async def _serve(connection: socket.socket) -> int:
    reader, writer = await asyncio.open_connection(sock=connection)
    hello = await read_frame(reader)
    if hello is None:
        return 0
    if hello.get("path") is not None:
        sys.path[:] = hello["path"]
    answer: Plain
    made: MadeEnvironment | None = None
    try:
        name = str(hello["environment"])
        made = open_environment(hello, load(component=name).get(HOOK, name))
        answer = {"ok": made.greeting}
    except BaseException as error:
        # Sys.exit() while a module is imported is an error of that module.
        answer = {"problem": problem_fields(problem_of(error))}
    writer.write(packed({"id": hello["id"], **answer}))
    await writer.drain()
    if made is None:
        return 1
    server = EpisodeServer(
        made.make, reader, writer, before_sending=partial(end_forked_child, os.getpid())
    )
    try:
        await server.serve()
    except (FrameError, EOFError, OSError) as error:
        print(f"the run's line broke: {type(error).__name__}: {error}", flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
