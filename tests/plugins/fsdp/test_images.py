"""Two ranks that read images take the update of one rank of torch, though only one of them has any."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from tests.importable_torchvision import search_path
from tests.plugins.vlm.vlm_material import families

from rlhf_testing.tiny_vision import write_tiny_vision_model

pytestmark = pytest.mark.slow
PROGRAM = Path(__file__).parent.parent / "deepspeed" / "deepspeed_seeing.py"
WAIT_S = 3600
"""That of a hang."""
CASES = ("fsdp", "fsdp frozen", "fsdp parts")


@pytest.mark.parametrize(
    "family",
    ["qwen3_vl", *families(["gemma3n", "gemma4", "glm4v_moe"], pytest.mark.matrix)],
)
def test_two_ranks_take_the_update_of_one_rank_of_torch(tmp_path, family):
    write_tiny_vision_model(tmp_path / family, family, initializer_range=0.1)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    own = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    own |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": search_path()}
    ranks = [
        subprocess.Popen(
            [sys.executable, str(PROGRAM), family, str(tmp_path), *CASES],
            env={**os.environ, **own, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        for rank in ranks:
            _, said = rank.communicate(timeout=WAIT_S)
            assert rank.returncode == 0, said[-4000:]
    finally:
        for rank in ranks:
            rank.kill()
    for found in (json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in range(2)):
        assert found["blind"] >= 2
        assert found["seeing"] >= 2
        for case in CASES:
            assert found[case]["same_names"]
            assert found[case]["before"] < 1e-5
            assert found[case]["weights"] < 1e-6
            assert found[case]["after"] < 1e-5
        assert found["fsdp"]["tower_moved"] > 1e-4
        assert found["fsdp frozen"]["tower_moved"] == 0
        assert found["fsdp parts"]["tower_moved"] > 1e-4
        assert found["fsdp parts"]["text_moved"] == 0
