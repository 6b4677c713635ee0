"""Ahead of training with an engine that really works meanwhile: vLLM in processes of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rlhf_trainer.durable.records import replay

ROOT = Path(__file__).resolve().parents[2]

pytestmark = [pytest.mark.scale, pytest.mark.slow, pytest.mark.learning]

MODES = {
    "drained": ("--rollout.max_staleness", "2"),
    "in flight": ("--rollout.max_staleness", "2", "--rollout.in_flight_updates"),
}


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
def test_the_quickstart_learns_while_vllm_runs_ahead(tmp_path, mode):
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
        "train.steps": 120,
        "log.progress": "off",
        "log.curve": "false",
        "engine.vllm.threads": 1,
        "engine.vllm.kv_cache_gib": 0.25,
    }
    words = [word for name, value in flags.items() for word in (f"--{name}", str(value))]
    command = [sys.executable, "-m", "rlhf_cli", "train", "-c", "examples/reverse_digits/run.toml"]
    subprocess.run([*command, *words, *mode], cwd=ROOT, env=env, check=True, capture_output=True)

    lines = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    steps = [line["metrics"] for line in lines if "metrics" in line]
    rewards = [step["reward/mean"] for step in steps]
    staleness = [step["rollout/staleness_max"] for step in steps]
    assert len(rewards) == 120
    assert max(staleness) <= 2
    assert sum(staleness) / len(staleness) > 0.5
    assert sum(rewards[-20:]) / 20 > sum(rewards[:20]) / 20 + 0.7
    assert replay(output / "ledger.jsonl").unsettled() == []
