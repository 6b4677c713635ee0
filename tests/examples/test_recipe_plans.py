"""Every recipe for GPUs is accepted by ``rlhf plan`` on the hardware that its first line names."""

import json
from pathlib import Path

import pytest

from rlhf_plugin_plan.command import main as plan

ROOT = Path(__file__).parents[2]
PUBLISHED = json.loads((ROOT / "tests/plugins/plan/published.json").read_text())

HUNDRED_80 = ("--gpu", "h100", "--nodes", "1", "--gpus-per-node", "8")
RECIPES = {
    "vllm_0.5b": ("qwen2.5-0.5b", ("--gpu", "a100-40"), 1),
    "vllm_1.5b": ("qwen2.5-1.5b", ("--gpu", "h100"), 1),
    "vlm_3b": ("qwen2.5-vl-3b", ("--gpu", "h100"), 1),
    "vlm_7b": ("qwen2.5-vl-7b", ("--gpu", "h100"), 1),
    "hybrid_7b": ("qwen2.5-7b", HUNDRED_80, 8),
    "split_7b": ("qwen2.5-7b", HUNDRED_80, 8),
    "async_7b": ("qwen2.5-7b", HUNDRED_80, 8),
    "long_7b": ("qwen2.5-7b", HUNDRED_80, 8),
    "cluster_72b": (
        "qwen2.5-72b",
        ("--gpu", "h100", "--nodes", "8", "--gpus-per-node", "8"),
        64,
    ),
}


@pytest.fixture
def planned(tmp_path, monkeypatch, capsys):
    """Plan a recipe with more flags; returns the exit code and the JSON."""
    monkeypatch.chdir(ROOT)

    def call(name, *flags):
        model, hardware, _ = RECIPES[name]
        file = tmp_path / "config.json"
        file.write_text(json.dumps(PUBLISHED[model]["config"]))
        code = plan(
            [
                *("-c", f"examples/{name}/run.toml", "--model-config", str(file), "--json"),
                *(*hardware, *flags),
            ]
        )
        return code, json.loads(capsys.readouterr().out)

    return call


@pytest.mark.parametrize("name", RECIPES)
def test_the_recipe_fits_its_hardware(planned, name):
    code, result = planned(name)

    assert (code, result["problems"], result["num_gpus"]) == (0, [], RECIPES[name][2])
    assert result["notes"] == []
    fullest = max(gpu["peak_gib"] for gpu in result["gpus"])
    # Predictions are within a tenth: what is closer to the edge than 1 % is no recipe.
    assert fullest < 0.99 * result["gpu"]["memory_gib"]


@pytest.mark.parametrize("name", RECIPES)
def test_the_first_line_names_the_hardware(name):
    first = (ROOT / "examples" / name / "run.toml").read_text().splitlines()[0]

    assert first.startswith("# ")
    assert "GPU" in first
    assert "GiB" in first


@pytest.mark.parametrize("name", RECIPES)
def test_the_readme_shows_the_plan(name):
    readme = (ROOT / "examples" / name / "README.md").read_text()

    assert f"rlhf plan -c examples/{name}/run.toml --gpu {RECIPES[name][1][1]}" in readme


def test_only_generating_ahead_overlaps(planned):
    overlaps = {name: planned(name)[1]["step_s"]["overlaps"] for name in RECIPES}

    assert [name for name, there in overlaps.items() if there] == ["async_7b"]


def test_a_recipe_is_refused_on_less_than_it_needs(planned):
    code, result = planned("hybrid_7b", "--gpu", "l40s", "--runtime.sleep", "never")

    assert code == 1
    fitting = [remedy["flags"] for remedy in result["remedies"] if remedy["fits"]]
    assert ["--runtime.sleep", "state"] in fitting


def test_a_recipe_whose_engine_sleeps_fits_on_less(planned):
    code, result = planned("hybrid_7b", "--gpu", "l40s")

    assert (code, result["problems"]) == (0, [])
