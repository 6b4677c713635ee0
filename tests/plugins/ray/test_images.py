"""Images on Ray: each process reads them from the run's folder, and between processes go references."""

import json
import pickle

import numpy as np
import pytest

pytest.importorskip("ray")

from PIL import Image
from tests.deadlines import PATIENT_S
from tests.images import SHOWS, noisy, saved

from rlhf_core.contracts import Task, Trajectory, Turn, Uid
from rlhf_core.media import MediaDesk, MediaOptions, MediaSpan
from rlhf_core.testing.tiny_vision import write_tiny_vision_model
from rlhf_plugin_ray.batches.packed_trajectories import pack

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
def train(tmp_path, monkeypatch, cluster):
    """Runs ``rlhf train`` with a model that sees; returns the metrics of its steps."""
    from rlhf_cli.main import main

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

    def run(output, *flags):
        small = ["--rollout.batch_size", "2", "--rollout.n_samples_per_prompt", "2"]
        small += ["--rollout.max_new_tokens", "4", "--data.max_prompt_tokens", "100"]
        small += ["--log.progress", "off", "--log.tensorboard", "false", "--log.curve", "false"]
        words = ["--model", "model", "--model.vision", "vlm", "--output", output, "--steps", "2"]
        assert main(["train", *words, *small, *flags]) == 0
        lines = (tmp_path / output / "metrics.jsonl").read_text().splitlines()
        return [line["metrics"] for line in map(json.loads, lines) if "metrics" in line]

    return run


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


@pytest.fixture
def taken(tmp_path):
    """An image of some size, and its reference."""
    pixels = np.random.default_rng(0).bytes(128 * 128 * 3)  # which no format makes smaller
    content = saved(Image.frombytes("RGB", (128, 128), pixels))
    assert len(content) > 20_000
    desk = MediaDesk(MediaOptions(folder=str(tmp_path / "media")))
    return content, desk.take(content, tmp_path)


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
    for sent in (task, pack([row])):
        message = pickle.dumps(sent)
        assert image.sha256 in repr(sent) or bytes.fromhex(image.sha256) in message
        assert len(message) < 4_000
        assert content[1000:1064] not in message
