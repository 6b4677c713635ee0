"""vLLM sees what the trainer sees: the same tokens of images, the same pixels, and features of the newest weights."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rlhf_core import RolloutError
from rlhf_plugin_vllm.requests import require_same_prompt

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
WAIT_S = 3600
"""That of a hang: vLLM's processes start slowly on a machine that has other work."""
TOLERANCE = 1e-4
"""Nats, float32: measured are 1e-6."""


def search_path() -> str:
    """The repository, and a torchvision: PyPI's for this torch is built for CUDA, and cannot be imported on a CPU."""
    stand_ins = [] if importlib.util.find_spec("torchvision") else [str(HERE / "stand_ins")]
    return os.pathsep.join([str(ROOT), *stand_ins])


@pytest.fixture(
    scope="module",
    params=["qwen2_5_vl", pytest.param("qwen3_vl", marks=pytest.mark.matrix)],
)
def found(request, tmp_path_factory) -> dict:
    """What one process of vLLM and a trainer found; it takes half a minute."""
    folder = tmp_path_factory.mktemp("seeing")
    done = subprocess.run(
        [sys.executable, str(HERE / "seeing_program.py"), request.param, str(folder)],
        env={**os.environ, "PYTHONPATH": search_path(), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=WAIT_S,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    line = next(line for line in done.stdout.splitlines() if line.startswith("FOUND "))
    return json.loads(line.removeprefix("FOUND "))


@pytest.mark.scale
@pytest.mark.slow
def test_vllm_agrees_with_the_trainer_on_images_in_the_prompt_and_in_later_turns(found):
    assert max(found["images"]) >= 3
    assert found["first"] < TOLERANCE


@pytest.mark.scale
@pytest.mark.slow
def test_no_token_of_an_image_is_sampled(found):
    assert found["never"] == []


@pytest.mark.scale
@pytest.mark.slow
def test_features_are_those_of_the_newest_weights(found):
    """The same images come again after the tower was trained."""
    assert found["tower_moved"] > 1e-3
    assert found["old_weights"] > 1e-2
    assert found["second"] < TOLERANCE
    assert found["same_digest"]
    assert found["same_digest_after"]


@pytest.mark.scale
@pytest.mark.slow
def test_new_weights_read_the_images_of_running_answers_again(found):
    assert found["versions"] == [1, 2]
    assert found["later"] < TOLERANCE


def test_an_answer_to_other_tokens_is_refused(make_request):
    require_same_prompt(make_request((5, 9, 7)), [5, 9, 7])
    with pytest.raises(RolloutError, match=r"from 4 tokens, and the prompt has 3; .* from token 2"):
        require_same_prompt(make_request((5, 9, 7)), [5, 9, 9, 7])
    with pytest.raises(RolloutError, match="differ from token 2 on"):
        require_same_prompt(make_request((5, 9)), [5, 9, 9])
