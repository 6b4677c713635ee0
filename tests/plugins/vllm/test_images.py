"""vLLM sees what the trainer sees: the same tokens of images, the same pixels, and features of the newest weights."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file
from tests.images import noisy, saved
from tests.plugins.vllm.torchvision_path import search_path
from tests.plugins.vlm.vlm_material import VLM

from rlhf_core import ConfigError, PluginError, RolloutError
from rlhf_core.contracts import EngineSpec, Uid, VisionSpec
from rlhf_plugin_vllm.images.prompts import ImagePrompts, require_within
from rlhf_plugin_vllm.requests import require_same_prompt
from rlhf_testing.errors import has_code
from rlhf_testing.tiny_vision import write_tiny_vision_model

HERE = Path(__file__).parent
WAIT_S = 3600
"""That of a hang: vLLM's processes start slowly on a machine that has other work."""
TOLERANCE = 1e-4
"""Nats, float32: measured are 1e-6."""


@pytest.fixture(
    scope="module",
    params=[
        "qwen2_5_vl",
        *(
            pytest.param(name, marks=pytest.mark.matrix)
            for name in ("qwen3_vl", "internvl", "llava")
        ),
    ],
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


@pytest.mark.scale
@pytest.mark.slow
@pytest.mark.matrix
def test_an_adapter_with_factors_in_the_tower_is_served_merged(tmp_path):
    write_tiny_vision_model(tmp_path / "model", num_layers=1, vision_layers=1)
    (tmp_path / "a.png").write_bytes(saved(noisy(24, 16)))
    (tmp_path / "rows.jsonl").write_text('{"prompt": "<image>what?", "images": ["a.png"]}\n' * 4)
    (tmp_path / "reward.py").write_text("def score(response):\n    return len(response) % 3\n")
    words = ["train", "--model", "model", "--model.vision", "vlm", "--output", "run"]
    words += ["--data", "rows.jsonl", "--data.chat", "--data.image_key", "images", "--steps", "2"]
    words += ["--rollout.batch_size", "2", "--rollout.n_samples_per_prompt", "4"]
    words += ["--rollout.max_new_tokens", "6", "--rollout.compared_share", "1"]
    words += ["--data.max_prompt_tokens", "60", "--reward", "reward.py:score"]
    words += ["--actor.adapter", "lora", "--actor.lora.serve", "merged", "--actor.adam.lr", "1e-2"]
    words += ["--engine", "vllm", "--engine.vllm.kv_cache_gib", "0.25", "--log.progress", "off"]

    done = subprocess.run(
        [sys.executable, "-m", "rlhf_cli", *words],
        env={**os.environ, "PYTHONPATH": search_path(), "OMP_NUM_THREADS": "1"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
    )

    assert done.returncode == 0, done.stderr[-4000:]
    lines = map(json.loads, (tmp_path / "run/metrics.jsonl").read_text().splitlines())
    gaps = [line["metrics"]["mismatch/logprob_diff_max"] for line in lines if "metrics" in line]
    assert len(gaps) == 2
    assert max(gaps) < TOLERANCE
    factors = load_file(tmp_path / "run/model/adapter_model.safetensors")
    moved = [np.abs(factor).max() for name, factor in factors.items() if _is_moved(name)]
    assert max(moved) > 1e-3


def _is_moved(name: str) -> bool:
    """Whether a factor is of the tower, and zero before it is trained."""
    return ".visual." in name and "lora_B" in name


def test_an_image_of_more_tokens_than_a_window_is_refused_where_they_look_ahead():
    """vLLM leaves out the block of such an image, in all layers."""
    require_within(None, 16, Uid(0, 0))
    require_within(16, 16, Uid(0, 0))

    with pytest.raises(
        PluginError,
        match=r"16 tokens.*is 15.*--engine embedded",
        check=has_code("vllm/image-beyond-window"),
    ):
        require_within(15, 16, Uid(0, 0))


def test_a_family_whose_tokens_of_images_look_ahead_is_refused_on_a_cpu(tmp_path):
    path = write_tiny_vision_model(tmp_path / "gemma", "gemma3")
    vision = VisionSpec(component=VLM, media_folder=str(tmp_path / "media"))
    spec = EngineSpec(
        model_path=str(path), dtype="float32", max_length=64, max_concurrency=1, eos_token_ids=(2,)
    )

    prompts = ImagePrompts(spec, vision)
    with pytest.raises(ConfigError, match="gemma", check=has_code("vllm/attention")):
        prompts.require_attention(str(path), on_cpu=True)
    prompts.require_attention(str(path), on_cpu=False)
    prompts.close()


def test_an_answer_to_other_tokens_is_refused(make_request):
    require_same_prompt(make_request((5, 9, 7)), [5, 9, 7])
    with pytest.raises(
        RolloutError, match=r"4 tokens.*has 3.*token 2", check=has_code("vllm/other-prompt")
    ):
        require_same_prompt(make_request((5, 9, 7)), [5, 9, 9, 7])
    with pytest.raises(RolloutError, match="token 2", check=has_code("vllm/other-prompt")):
        require_same_prompt(make_request((5, 9)), [5, 9, 9])
