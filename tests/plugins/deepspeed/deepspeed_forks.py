"""Ranks as forks of one process that has imported what they need: ``python deepspeed_forks.py``.

Each line of its input is JSON, ``[WAY, MODELS, OUT, PORT]``; it answers with the exit codes of the ranks when all have
ended. A processor takes seven seconds to import ``deepspeed_rank``, and two ranks go through each of many ways. A fork
ends like an interpreter of its own, so that tests find what fails at its end.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from deepspeed_rank import WAYS, go_through_all

# What ranks would import later, each for itself.
from rlhf_plugin_deepspeed.backend import DeepSpeedBackend  # noqa: F401


def be_a_rank(rank: int, way: str, models: str, out: str, port: int) -> None:
    """Go through a way in this process, of which ``OUT/logRANK`` tells."""
    log = os.open(Path(out) / f"log{rank}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(log, stream)
    place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": WAYS[way].world_size}
    place |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in place.items()})
    go_through_all(WAYS[way], Path(models), Path(out))


def main() -> None:
    """Fork the ranks that each line asks for."""
    for line in sys.stdin:
        way, models, out, port = json.loads(line)
        ranks = []
        for rank in range(WAYS[way].world_size):
            child = os.fork()
            if child == 0:
                be_a_rank(rank, way, models, out, port)
                return
            ranks.append(child)
        codes = [os.waitstatus_to_exitcode(os.waitpid(rank, 0)[1]) for rank in ranks]
        print(json.dumps(codes), flush=True)


if __name__ == "__main__":
    main()
