"""The whole way: the quickstart's model learns from what vLLM wrote, with weights that follow each step."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]

pytestmark = [pytest.mark.scale, pytest.mark.slow, pytest.mark.learning]


def test_the_quickstart_learns_with_this_engine(tmp_path):
    pytest.importorskip("vllm")
    data, output = tmp_path / "data", tmp_path / "run"
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    prepare = [sys.executable, "examples/reverse_digits/prepare.py", "--output", str(data)]
    subprocess.run(prepare, cwd=ROOT, env=env, check=True, capture_output=True)

    flags = {
        "output": output,
        "engine": "vllm",
        "model": data / "model",
        "data": data / "train.jsonl",
        "eval.data": f"held_out={data / 'test.jsonl'}",
        "train.steps": 150,
        "log.progress": "off",
        "log.curve": "false",
        "engine.vllm.threads": 1,
        "engine.vllm.kv_cache_gib": 0.25,
    }
    words = [word for name, value in flags.items() for word in (f"--{name}", str(value))]
    command = [sys.executable, "-m", "rlhf_cli", "train", "-c", "examples/reverse_digits/run.toml"]
    subprocess.run([*command, *words], cwd=ROOT, env=env, check=True, capture_output=True)

    lines = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    steps = [line["metrics"] for line in lines if "metrics" in line]
    rewards = [step["reward/mean"] for step in steps]
    # 0.19 at first; measured 2.3 at step 150, of 6.
    assert len(rewards) == 150
    assert sum(rewards[-20:]) / 20 > sum(rewards[:20]) / 20 + 1.0
    # At every step the trainer finds the log-probs that vLLM gave; measured 2e-6.
    assert max(step["mismatch/logprob_diff_max"] for step in steps) < 1e-4
