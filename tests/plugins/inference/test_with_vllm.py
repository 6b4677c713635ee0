"""``rlhf generate`` and ``rlhf eval`` with vLLM, which gets its weights from the model's files."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from tests.deadlines import HANG_S

pytestmark = [pytest.mark.scale, pytest.mark.slow]

VLLM = ["--engine", "vllm", "--engine.vllm.threads", "1", "--engine.vllm.kv_cache_gib", "0.25"]


@pytest.fixture
def folder(base, tmp_path):
    pytest.importorskip("vllm")
    rows = [{"prompt": f"{n}+1="} for n in range(200)]
    (tmp_path / "prompts.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    return tmp_path


def command(base, output, *words):
    common = ["--model", str(base), "--data", "prompts.jsonl", "--output", output]
    common += ["--data.max_prompt_tokens", "32", "--log.progress", "off"]
    return [sys.executable, "-m", "rlhf_cli", "generate", *common, *words]


def lines(folder, output):
    text = (folder / output / "completions.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


def test_vllm_writes_what_the_embedded_engine_writes(base, folder, no_process_left):
    """Greedily: seeds mean other things to each. The weights came from the file, whose head is the embedding."""
    words = [
        "--rollout.temperature",
        "0",
        "--rollout.max_new_tokens",
        "8",
        "--data.max_samples",
        "9",
    ]

    for output, engine in (("vllm", VLLM), ("embedded", [])):
        subprocess.run(command(base, output, *words, *engine), cwd=folder, check=True)

    ours, theirs = lines(folder, "embedded"), lines(folder, "vllm")
    for one, other in zip(ours, theirs, strict=True):
        (mine,), (its,) = one["completions"], other["completions"]
        assert its["text"] == mine["text"]
        assert its["logprob"] == pytest.approx(mine["logprob"], abs=1e-3)


def test_an_evaluation_with_vllm_has_the_episodes_of_the_embedded_engine(
    base, folder, no_process_left
):
    """Greedily, through an environment: prompts of the second turn were written by the engine and the environment."""
    for output, engine in (("vllm", VLLM), ("embedded", [])):
        words = ["eval", str(base), "--env", "echo_after_hint", "--eval.max_samples", "6"]
        words += ["--rollout.max_new_tokens", "6", "--rollout.max_length", "64"]
        words += ["--log.progress", "off", "--output", output]
        subprocess.run([sys.executable, "-m", "rlhf_cli", *words, *engine], cwd=folder, check=True)

    ours, theirs = ((folder / name / "episodes.jsonl").read_text() for name in ("embedded", "vllm"))
    assert ours == theirs
    assert len(ours.splitlines()) == 6


def test_an_adapter_beside_the_base_in_two_engines_gives_what_the_merged_model_gives(
    base, folder, write_adapter, no_process_left
):
    adapter = ["--model.adapter", str(write_adapter(base))]
    words = ["--rollout.temperature", "0", "--rollout.max_new_tokens", "8"]
    words += ["--data.max_samples", "9", *adapter, *VLLM]
    said = {}
    for serve, engines in (("merged", "1"), ("auto", "2")):
        flags = ["--model.serve", serve, "--engines", engines]
        done = subprocess.run(
            command(base, serve, *words, *flags),
            cwd=folder,
            check=True,
            stderr=subprocess.PIPE,
            text=True,
        )
        said[serve] = done.stderr

    assert "beside the base's weights (plain LoRA" in said["auto"]
    assert "merged into the weights (--model.serve merged)" in said["merged"]
    for one, other in zip(lines(folder, "auto"), lines(folder, "merged"), strict=True):
        (mine,), (its,) = one["completions"], other["completions"]
        assert mine["text"] == its["text"]
        assert mine["logprob"] == pytest.approx(its["logprob"], abs=1e-5 * mine["tokens"])


def test_ctrl_c_of_a_terminal_leaves_a_file_to_go_on_with(base, folder, no_process_left):
    """A terminal sends SIGINT to every process of its group, vLLM's included."""
    words = ["--rollout.max_new_tokens", "400", "--rollout.min_new_tokens", "400"]
    words += ["--rollout.concurrency", "2", *VLLM]
    process = subprocess.Popen(
        command(base, "out", *words),
        cwd=folder,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    path = folder / "out" / "completions.jsonl"
    give_up = time.monotonic() + HANG_S
    while not (path.exists() and path.stat().st_size) and time.monotonic() < give_up:
        time.sleep(0.05)

    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=HANG_S)

    assert process.returncode == 130, err
    written = len(lines(folder, "out"))
    assert 0 < written < 200
    assert f"interrupted: by SIGINT: {written} of 200 prompts are in out/completions.jsonl" in err
