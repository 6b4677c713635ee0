"""Two ranks that read images take the update of one rank of torch, also if only one of them has any."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from tests.importable_torchvision import search_path
from tests.plugins.vlm.vlm_material import families

from rlhf_testing.tiny_vision import write_tiny_vision_model

HERE = Path(__file__).parent
WAIT_S = 3600
"""That of a hang: two ranks go through some cases, on a machine that may have other work."""
# A stage each that cuts gradients and weights, of the whole model and of a part; other cases mix the same lines anew.
USUAL = ("2", "3", "3 frozen", "2 parts")
FURTHER = ("0", "1", "2 frozen", "0 parts", "1 parts", "3 parts")
groups = pytest.mark.parametrize("cases", [USUAL, pytest.param(FURTHER, marks=pytest.mark.matrix)])


@pytest.fixture(
    scope="module",
    params=[
        "qwen3_vl",
        pytest.param("qwen2_5_vl", marks=pytest.mark.matrix),
        pytest.param("llava", marks=pytest.mark.matrix),
        *families(["gemma3n", "gemma4", "glm4v_moe"], pytest.mark.matrix),
    ],
)
def found(request, tmp_path_factory) -> Callable[[tuple[str, ...]], list[dict]]:
    """What each of two ranks found in some cases; the second has no row with images."""
    pytest.importorskip("deepspeed")

    @cache
    def run(cases: tuple[str, ...]) -> list[dict]:
        return see(request.param, tmp_path_factory.mktemp("seeing"), cases)

    return run


def see(family: str, folder: Path, cases: tuple[str, ...]) -> list[dict]:
    write_tiny_vision_model(folder / family, family, initializer_range=0.1)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    own = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    environment = {**os.environ, **own, "OMP_NUM_THREADS": "1", "PYTHONPATH": search_path()}
    ranks = [
        subprocess.Popen(
            [sys.executable, str(HERE / "deepspeed_seeing.py"), family, str(folder), *cases],
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
@groups
def test_two_ranks_take_the_update_of_one_rank_of_torch(found, cases):
    for rank in found(cases):
        assert rank["blind"] >= 2
        assert rank["seeing"] >= 2
        for case in cases:
            assert rank[case]["same_names"], case
            assert rank[case]["before"] < 1e-5, case
            assert rank[case]["weights"] < 1e-6, case
            assert rank[case]["after"] < 1e-5, case


@pytest.mark.scale
@pytest.mark.slow
@groups
def test_a_part_is_trained_unless_it_is_frozen(found, cases):
    for rank in found(cases):
        for case in cases:
            for part, frozen in (("tower_moved", "frozen"), ("text_moved", "parts")):
                moved = rank[case][part]
                assert moved == 0 if case.endswith(frozen) else moved > 1e-4, (case, part)
