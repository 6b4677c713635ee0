"""Memory that another process sees, without a name that could be left behind."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from rlhf_weights import HostBuffer, LinkBroken, buffer_for, open_buffer

READ = """
import json, sys, torch
from rlhf_weights import open_buffer
shared = open_buffer(json.loads(sys.argv[1]), torch.device("cpu"))
print(shared[:4].tolist())
shared[0] = 99
"""


def test_another_process_reads_and_writes_the_same_bytes():
    buffer = HostBuffer(64)
    buffer.bytes[:4] = torch.tensor([1, 2, 3, 4])
    buffer.ready()

    done = subprocess.run(
        [sys.executable, "-c", READ, json.dumps(buffer.description)],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": ":".join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"},
    )

    assert done.stdout.strip() == "[1, 2, 3, 4]"
    assert int(buffer.bytes[0]) == 99
    buffer.close()


def test_the_memory_has_no_name_and_is_closed():
    buffer = buffer_for(1 << 16, torch.device("cpu"))
    path = Path(buffer.description["path"])
    assert str(path.readlink()).startswith("/memfd:")
    shared = open_buffer(buffer.description, torch.device("cpu"))

    buffer.close()

    assert not path.exists()
    shared[0] = 1  # what was opened stays readable until its reader is done


def test_another_file_in_the_place_of_the_senders_is_refused():
    """As in another container, where the number of the process may be somebody else's."""
    mine, other = HostBuffer(64), HostBuffer(64)
    path = other.description["path"]

    with pytest.raises(LinkBroken, match="another container"):
        open_buffer(mine.description | {"path": path}, torch.device("cpu"))
    with pytest.raises(LinkBroken, match="another machine"):
        open_buffer(mine.description | {"path": "/proc/0/fd/1"}, torch.device("cpu"))

    mine.close()
    other.close()
