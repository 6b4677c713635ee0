"""A rank whose threads are busy when its program ends."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.scale

PROGRAM = """
import builtins
import torch
import torch.distributed as dist
from rlhf_torch.ranks.ranks import join

join(torch.device("cpu"))
builtins.kept = dist.group.WORLD  # as an engine of DeepSpeed keeps it
tensors = [torch.ones(300_000) for _ in range(300)]
while tensors:
    tensor = tensors.pop()
    dist.all_gather([torch.empty_like(tensor)], tensor, async_op=True)
del tensor
"""


def test_a_rank_with_collective_calls_under_way_ends_with_its_own_code():
    """Without the wait the process dies of SIGABRT, at every try."""
    pytest.importorskip("deepspeed")

    ended = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)

    assert (ended.returncode, ended.stderr) == (0, "")
