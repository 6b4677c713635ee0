"""GPUs as people write them."""

import json

import pytest

from rlhf_core import ConfigError
from rlhf_plugin_plan.command import main as plan
from rlhf_plugin_plan.machine.hardware import find_fleet
from rlhf_testing.errors import has_code


@pytest.mark.parametrize(
    ("text", "count", "name", "memory_gib"),
    [
        ("4xa100-80", 4, "a100-80", 79.2),
        ("h200", 1, "h200", 139.8),
        ("8x24GB", 8, "24GB", 0.985 * 24),
        ("2x47.5gib", 2, "47.5gib", 0.985 * 47.5),
    ],
)
def test_a_fleet_is_a_number_and_a_gpu_or_a_memory(text, count, name, memory_gib):
    fleet = find_fleet(text)

    assert (fleet.count, fleet.gpu.name) == (count, name)
    assert fleet.gpu.memory_gib == pytest.approx(memory_gib)


@pytest.mark.parametrize("text", ["", "4", "4x", "0xh100", "4xunheard-of", "x24GB", "4 x h100"])
def test_anything_else_is_refused_with_what_is_known(text):
    with pytest.raises(
        ConfigError, match=r"4xa100-80.*h200, h100", check=has_code("plan/malformed-fleet")
    ):
        find_fleet(text)


def test_a_model_alone_is_planned_on_all_of_them(tmp_path, config_file, capsys):
    (tmp_path / "model").mkdir()
    config_file("qwen2.5-7b").rename(tmp_path / "model" / "config.json")
    model = str(tmp_path / "model")
    lengths = ("--data.max_prompt_tokens", "256", "--rollout.max_new_tokens", "1024")

    assert plan([model, "--gpus", "4xa100-80", *lengths]) == 0

    text = capsys.readouterr().out
    assert "4 GPU: policy + engine" in text
    *_, reason, command = text.strip().splitlines()
    assert reason.startswith("memory: ")
    assert command.startswith(
        f"rlhf train --model {model} --data prompts.jsonl --reward exact_match"
    )
    assert "--gpus 4 --engine vllm --backend.deepspeed.compile true" in command
    assert "--backend.deepspeed.gradient_checkpointing" in command

    assert plan([model, "--gpus", "4xa100-80", *lengths, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["gpus"][0]["count"] == 4


def test_a_model_that_fits_nowhere_is_told_with_what_is_missing(tmp_path, config_file, capsys):
    (tmp_path / "model").mkdir()
    config_file("qwen2.5-7b").rename(tmp_path / "model" / "config.json")

    assert plan([str(tmp_path / "model"), "--gpus", "2x24GB"]) == 1

    assert "It does not fit. policy + engine: needs" in capsys.readouterr().out
