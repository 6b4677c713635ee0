"""Images on Ray: each process reads them from the run's folder, and between processes go references."""

import json
import os
import pickle
import subprocess
import sys

import numpy as np
import pytest

pytest.importorskip("ray")

from PIL import Image
from safetensors.numpy import load_file
from tests.deadlines import PATIENT_S
from tests.images import SHOWS, noisy, saved
from tests.plugins.vllm.torchvision_path import search_path

from rlhf_core.contracts import FinishedGroup, Task, Trajectory, TrajectoryColumns, Turn, Uid
from rlhf_core.media import MediaLoader, MediaOptions, MediaSpan
from rlhf_plugin_ray.rollouts.group_messages import pack_done
from rlhf_testing.tiny_vision import write_tiny_vision_model

scale = pytest.mark.scale
slow = pytest.mark.slow

PROMPTS = [
    *("--data", "rows.jsonl", "--data.chat", "--data.image_key", "images"),
    *("--reward", "reward.py:score"),
]
TURNS = [
    *("--executor", "multi_turn", "--env", "shows.py:Shows", "--rollout.multi_turn.max_turns", "2"),
    *("--rollout.max_length", "200"),
]
WORKERS = ["--runtime.ray.rollout_workers", "1", "--runtime.ray.cpus_per.rollout", "0.5"]
PATIENT = ["--runtime.ray.start_timeout_s", str(PATIENT_S)]


@pytest.fixture
def workspace(tmp_path, monkeypatch):
    """A folder with a model that sees, prompts with images, a reward and an environment."""
    write_tiny_vision_model(
        tmp_path / "model", hidden_size=16, num_heads=2, num_layers=1, vision_layers=1
    )
    rows = []
    for number in range(6):
        name = f"{number}.png"
        (tmp_path / name).write_bytes(saved(noisy(8 + 8 * (number % 3), 16)))
        rows.append({"prompt": f"<image>how many? {number}", "images": [name], "answer": "1"})
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    (tmp_path / "reward.py").write_text(
        "def score(response):\n    return sum(map(ord, response)) % 7\n"
    )
    (tmp_path / "shows.py").write_text(SHOWS)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def words_of(output, *flags):
    """Words of ``rlhf`` for a run of two small steps."""
    small = ["--rollout.batch_size", "2", "--rollout.n_samples_per_prompt", "2"]
    small += ["--rollout.max_new_tokens", "4", "--data.max_prompt_tokens", "100"]
    small += ["--log.progress", "off", "--log.tensorboard", "false", "--log.curve", "false"]
    words = ["--model", "model", "--model.vision", "vlm", "--output", output, "--steps", "2"]
    return ["train", *words, *small, *flags]


def metrics_of(run):
    """The metrics of a run's steps."""
    lines = (run / "metrics.jsonl").read_text().splitlines()
    return [line["metrics"] for line in map(json.loads, lines) if "metrics" in line]


@pytest.fixture
def train(workspace, cluster):
    """Runs ``rlhf train`` with a model that sees; returns the metrics of its steps."""
    from rlhf_cli.main import main

    def run(output, *flags):
        assert main(words_of(output, *flags)) == 0
        return metrics_of(workspace / output)

    return run


def train_apart(output, *flags):
    """Run ``rlhf train`` in a process of its own, which finds torchvision for vLLM's processes."""
    done = subprocess.run(
        [sys.executable, "-m", "rlhf_cli", *words_of(output, *flags)],
        env={**os.environ, "PYTHONPATH": search_path(), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=PATIENT_S,
    )
    assert done.returncode == 0, done.stderr[-4000:]


@scale
@slow
@pytest.mark.parametrize(
    ("words", "flags"), [(PROMPTS, []), (TURNS, WORKERS)], ids=["prompts", "turns in workers"]
)
def test_a_run_has_the_metrics_of_one_in_one_process(train, words, flags):
    here = train("local", *words, "--runtime.local.threads", "1")

    there = train("ray", *words, "--runtime", "ray", *PATIENT, *flags)

    assert here
    assert there == here


@scale
@slow
def test_vllm_and_deepspeed_on_ray_train_what_one_process_trains(workspace):
    """With vLLM in both, whose tokens a seed decides: two steps end with the same weights."""
    pytest.importorskip("vllm")
    pytest.importorskip("deepspeed")
    vllm = ["--engine", "vllm", "--engine.vllm.kv_cache_gib", "0.25", "--engine.vllm.threads", "1"]
    both = [*PROMPTS, *vllm, "--rollout.compared_share", "1", "--actor.adam.lr", "1e-3"]
    spread = ["--runtime", "ray", "--backend", "deepspeed", *PATIENT]

    train_apart("local", *both, "--runtime.local.threads", "1")
    train_apart("ray", *both, *spread)

    here, there = (metrics_of(workspace / name) for name in ("local", "ray"))
    for step, expected in zip(there, here, strict=True):
        assert step["mismatch/logprob_diff_max"] < 1e-4
        assert step["policy/grad_norm"] > 0
        assert step["reward/mean"] == expected["reward/mean"]
    before, alone, spread_out = (
        load_file(workspace / folder / "model.safetensors")
        for folder in ("model", "local/model", "ray/model")
    )
    assert max(np.abs(alone[name] - before[name]).max() for name in before) > 1e-3
    for name, weight in alone.items():
        np.testing.assert_allclose(spread_out[name], weight, atol=1e-5, err_msg=name)


@pytest.fixture
def taken(tmp_path):
    """An image of some size, and its reference."""
    pixels = np.random.default_rng(0).bytes(128 * 128 * 3)  # which no format makes smaller
    content = saved(Image.frombytes("RGB", (128, 128), pixels))
    assert len(content) > 20_000
    loader = MediaLoader(MediaOptions(folder=str(tmp_path / "media")))
    return content, loader.take(content, tmp_path)


def test_what_goes_to_a_worker_and_back_has_references_alone(taken):
    content, image = taken
    part = {"type": "image", "media": image.fields()}
    task = Task(uid=Uid(0, 0), prompt_ids=(5, 6), messages=({"role": "user", "content": [part]},))
    row = Trajectory(
        uid=Uid(0, 0),
        token_ids=np.arange(9, dtype=np.int32),
        action_mask=np.arange(9) >= 7,
        rollout_logprobs=np.zeros(2, dtype=np.float32),
        weight_version=np.zeros(2, dtype=np.int32),
        turns=(Turn(start=7, end=9),),
        media=(MediaSpan(start=1, length=4, image=image),),
    )
    group = FinishedGroup(batch=TrajectoryColumns.from_trajectories([row]))
    for sent in (task, pack_done({0: group}, {})):
        message = pickle.dumps(sent)
        assert image.sha256 in repr(sent) or bytes.fromhex(image.sha256) in message
        assert len(message) < 4_000
        assert content[1000:1064] not in message
