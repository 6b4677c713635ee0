"""Two ranks that read images take the update of one rank of torch, also if only one of them has any."""

from __future__ import annotations

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

HERE = Path(__file__).parent
WAIT_S = 3600
"""That of a hang: two ranks go through ten cases, on a machine that may have other work."""
STAGES = ("0", "1", "2", "3")
FROZEN = ("2 frozen", "3 frozen")
PARTS = tuple(f"{stage} parts" for stage in STAGES)


@pytest.fixture(
    scope="module",
    params=[
        "qwen3_vl",
        pytest.param("qwen2_5_vl", marks=pytest.mark.matrix),
        pytest.param("llava", marks=pytest.mark.matrix),
        *families(["gemma3n", "gemma4", "glm4v_moe"], pytest.mark.matrix),
    ],
)
def found(request, tmp_path_factory) -> list[dict]:
    """What each of two ranks found; the second has no row with images."""
    pytest.importorskip("deepspeed")
    folder = tmp_path_factory.mktemp("seeing")
    write_tiny_vision_model(folder / request.param, request.param, initializer_range=0.1)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    own = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    environment = {**os.environ, **own, "OMP_NUM_THREADS": "1", "PYTHONPATH": search_path()}
    ranks = [
        subprocess.Popen(
            [sys.executable, str(HERE / "deepspeed_seeing.py"), request.param, str(folder)],
            env={**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)},
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
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.scale
@pytest.mark.slow
@pytest.mark.parametrize("stage", [*STAGES, *FROZEN, *PARTS])
def test_two_ranks_take_the_update_of_one_rank_of_torch(found, stage):
    for rank in found:
        assert rank["blind"] >= 2
        assert rank["seeing"] >= 2
        assert rank[stage]["same_names"]
        assert rank[stage]["before"] < 1e-5
        assert rank[stage]["weights"] < 1e-6
        assert rank[stage]["after"] < 1e-5


@pytest.mark.scale
@pytest.mark.slow
def test_a_part_is_trained_unless_it_is_frozen(found):
    for rank in found:
        assert all(rank[stage]["tower_moved"] > 1e-4 for stage in (*STAGES, *PARTS))
        assert all(rank[stage]["tower_moved"] == 0 for stage in FROZEN)
        assert all(rank[stage]["text_moved"] > 1e-4 for stage in (*STAGES, *FROZEN))
        assert all(rank[stage]["text_moved"] == 0 for stage in PARTS)
