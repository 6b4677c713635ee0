"""``rlhf train`` and ``rlhf sft`` from a folder in MXFP4 or FP8: their models are plain folders."""

import json
import shutil

import pytest
from tests.quantized_folders import unpacked, write_quantized
from transformers import AutoModelForCausalLM

from rlhf_cli.main import main

from .forked_runs import QUIET

pytestmark = pytest.mark.slow


@pytest.fixture(params=["gpt_oss", "qwen3"])
def quantized(request, workspace):
    shutil.rmtree(workspace / "model")
    return write_quantized(workspace / "model", request.param)


def is_trained(folder, quantized):
    """The exported model is plain, and each of its weights is near to an unpacked one."""
    assert "quantization_config" not in json.loads((folder / "config.json").read_text())
    found, info = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not any(info.values())
    state, before = found.state_dict(), unpacked(quantized).state_dict()
    assert state.keys() == before.keys()
    distances = [float((state[name] - weight).abs().max()) for name, weight in before.items()]
    assert 0 < max(distances) < 0.05


def test_a_step_of_reinforcement_learning_exports_a_plain_model(train, quantized, workspace):
    words = ["--model.dtype", "float32", "--steps", "1", "--algo.advantage.estimator", "group_norm"]
    train("run", *words, "--reward", "vary.py:vary")

    is_trained(workspace / "run" / "model", quantized)


def test_a_step_of_supervised_learning_exports_a_plain_model(quantized, workspace):
    rows = [{"prompt": f"{a}+1=", "response": f"{a + 1}"} for a in range(8)]
    (workspace / "sums.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    words = ["sft", "--model", "model", "--data", "sums.jsonl", "--output", "sft", "--steps", "1"]

    assert main([*words, "--model.dtype", "float32", *QUIET]) == 0

    is_trained(workspace / "sft" / "model", quantized)


def test_one_line_says_that_the_weights_are_unpacked(train, quantized, workspace):
    train("run", "--steps", "1")

    text = (workspace / "run" / "run.log").read_text()
    assert text.count("which are unpacked as they are loaded") == 1
