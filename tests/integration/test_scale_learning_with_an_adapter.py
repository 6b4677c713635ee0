"""Low-rank factors learn the rest of the quickstart's task from what vLLM writes with each version of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.deadlines import PATIENT_S

pytest.importorskip("ray")
pytest.importorskip("vllm")
pytest.importorskip("deepspeed")

ROOT = Path(__file__).resolve().parents[2]

pytestmark = [pytest.mark.scale, pytest.mark.slow, pytest.mark.learning]

STEPS = 300
WARM_UP = {
    "data.response_key": "answer",
    "steps": 25,
    "actor.warmup_ratio": 0,
    "train.batch_size": 64,
    "actor.adam.lr": 5e-3,
    "runtime.local.threads": 1,
}
TRAIN = {
    "steps": STEPS,
    "actor.adapter": "lora",
    "actor.adam.lr": 5e-3,
    "eval.every": 0,
    "engine": "vllm",
    "engine.vllm.threads": 1,
    "engine.vllm.kv_cache_gib": 0.25,
}
ON_RAY = {
    "runtime": "ray",
    "runtime.ray.threads": 1,
    "runtime.ray.cpus": 3,
    "runtime.ray.show_output": "false",
    "runtime.ray.ranks.policy": 2,
    "backend": "deepspeed",
}
QUIET = {"log.progress": "off", "log.curve": "false", "log.tensorboard": "false"}
PLACES = {
    "vllm": {},
    "ray, ZeRO-3": ON_RAY | {"backend.deepspeed.zero_stage": 3},
    "ray, ZeRO-2, merged": ON_RAY
    | {"backend.deepspeed.zero_stage": 2, "actor.lora.serve": "merged"},
}


def rlhf(command: str, *words: str) -> None:
    subprocess.run(
        [sys.executable, "-m", "rlhf_cli", command, *words],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        check=True,
        timeout=PATIENT_S,
    )


def flags(**named: object) -> list[str]:
    return [word for name, value in named.items() for word in (f"--{name}", str(value))]


@pytest.fixture(scope="module")
def half_trained(tmp_path_factory):
    """A folder with data and a model that is right for some of the strings, after a few supervised updates."""
    folder = tmp_path_factory.mktemp("reverse")
    words = [sys.executable, "examples/reverse_digits/prepare.py", "--output", str(folder / "data")]
    subprocess.run(words, cwd=ROOT, check=True)
    data = {"model": folder / "data/model", "data": folder / "data/train.jsonl"}
    rlhf("sft", *flags(**data, **WARM_UP, **QUIET, output=folder / "warm"))
    return folder


@pytest.mark.parametrize("place", PLACES)
def test_the_adapter_learns_from_a_warm_start(half_trained, tmp_path, place):
    output = tmp_path / "run"
    files = {
        "output": output,
        "model": half_trained / "warm/model",
        "data": half_trained / "data/train.jsonl",
        "eval.data": f"held_out={half_trained / 'data/test.jsonl'}",
    }

    rlhf(
        *("train", "-c", "examples/reverse_digits/run.toml"),
        *flags(**files, **TRAIN, **QUIET, **PLACES[place]),
    )

    lines = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    steps = [line["metrics"] for line in lines if "metrics" in line]
    before, after = (line["eval"]["eval/held_out/T0/pass@1"] for line in lines if "eval" in line)
    points = [step["reward/mean"] for step in steps]
    first, last = sum(points[:10]) / 10, sum(points[-10:]) / 10
    print(f"{place}: {first:.2f} -> {last:.2f} of 6 points, {before:.2f} -> {after:.2f} right")
    assert len(steps) == STEPS
    assert before <= 0.6
    assert after >= 0.9
    assert last > first
    # At each step the trainer finds the log-probs that vLLM gave with the factors of that version.
    assert max(step["mismatch/logprob_diff_max"] for step in steps) <= 1e-4
