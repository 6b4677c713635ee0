"""Names of shared memory that a process has mapped, and of no other, are removed; the memory stays."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.deadlines import HANG_S

from rlhf_plugin_vllm.worker.segments import SHARED

pytestmark = pytest.mark.skipif(not Path(SHARED).exists(), reason="no shared memory")

# In a process of its own: this one may have segments of other tests.
PROGRAM = """
import mmap, sys
from rlhf_plugin_vllm.worker.segments import remove_names

of_groups_alone, *paths = sys.argv[1:]
maps = []
for path in paths:
    with open(path, "r+b") as file:
        maps.append(mmap.mmap(file.fileno(), 0))
for _ in range(2):
    remove_names(of_groups_alone=of_groups_alone == "True")
maps[0][:3] = b"yes"
assert maps[0][:3] == b"yes"
"""


@pytest.fixture
def paths():
    """Segments of vLLM's group, of Python, of somebody else, and of another group."""
    own = f"{os.getpid()}-{os.urandom(4).hex()}"
    names = [f"vllm_dist_{own}-tp:0-[0-1]-cpushm_0", f"psm_{own}", f"other_{own}"]
    names.append(f"vllm_dist_{own}-tp:0-[2-3]-cpushm_0")
    paths = [Path(SHARED, name) for name in names]
    for path in paths:
        path.write_bytes(bytes(mmap.PAGESIZE))
    yield paths
    for path in paths:
        path.unlink(missing_ok=True)


@pytest.mark.parametrize(("of_groups_alone", "gone"), [(True, [0]), (False, [0, 1])])
def test_names_of_a_processs_segments_go_and_the_memory_stays(paths, of_groups_alone, gone):
    """The last one is mapped by nobody."""
    words = [sys.executable, "-c", PROGRAM, str(of_groups_alone), *map(str, paths[:-1])]

    subprocess.run(words, check=True, timeout=HANG_S)

    assert [number for number, path in enumerate(paths) if not path.exists()] == gone
