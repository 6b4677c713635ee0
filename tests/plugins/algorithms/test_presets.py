"""The presets of the first-party plugins: what a run with each of them is, and that the page lists it."""

import re
from pathlib import Path

import pytest

from rlhf_cli.train import DEFAULTS
from rlhf_cli.training import Arguments, layers_of
from rlhf_config import resolve
from rlhf_core.plugins import load

PLUGINS = load()
PRESETS = {entry.name: entry for entry in PLUGINS.registries["rlhf_presets"]}
ENOUGH = ("--model", "some/model", "--data", "org/set", "--reward", "math")
ESTIMATOR, LOSS, KL = "algo.advantage.estimator", "algo.loss.policy", "algo.kl.estimator"
METHODS = {
    # estimator, loss, aggregation, KL, samples of a prompt
    "grpo": ("group_norm", "ppo", "seq-mean-token-mean", ("loss", "k3", 0.04), 64),
    "dr_grpo": ("dr_grpo", "ppo", "seq-mean-token-sum-norm", None, 8),
    "dapo": ("group_norm", "ppo", "token-mean", None, 16),
    "gspo": ("group_norm", "gspo", "seq-mean-token-mean", None, 8),
    "cispo": ("group_norm", "cispo", "token-mean", None, 8),
    "reinforce_pp": ("reinforce", "ppo", "auto", ("reward", "k1", 0.01), 1),
    "reinforce_baseline": ("reinforce_baseline", "ppo", "auto", ("loss", "k2", 1e-3), 8),
    "rloo": ("rloo", "ppo", "auto", ("reward", "k1", 0.05), 4),
    "ppo": ("gae", "ppo", "auto", ("reward", "k1", 0.02), 1),
}


def run_of(*words):
    layers = layers_of(Arguments(options=(*ENOUGH, *words)), DEFAULTS, ())
    return resolve(layers, PLUGINS, ())


def test_every_method_has_its_preset():
    assert set(PRESETS) == set(METHODS)


@pytest.mark.parametrize("name", METHODS)
def test_a_preset_is_its_method(name):
    found = run_of("--preset", name)
    algo = found.run.algo

    kl = (algo.kl.mode, found.one(KL).name, algo.kl.coef) if algo.kl.coef else None
    assert (
        found.one(ESTIMATOR).name,
        found.one(LOSS).name,
        algo.loss.aggregation,
        kl,
        found.run.rollout.n_samples_per_prompt,
    ) == METHODS[name]
    assert found.unused == ()


def test_dapo_is_all_of_its_parts():
    found = run_of("--preset", "dapo")

    loss = found.one(LOSS).options
    assert (loss.clip_low, loss.clip_high) == (0.2, 0.28)
    assert [chosen.name for chosen in found.selections["rollout.filters"]] == ["dynamic_sampling"]
    assert [chosen.name for chosen in found.selections["reward.shapers"]] == ["overlong"]


def test_a_flag_wins_over_a_preset():
    found = run_of("--preset", "dapo", "--loss", "gspo", "--algo.kl.coef", "0.5")

    assert found.one(LOSS).name == "gspo"
    assert found.run.algo.kl.coef == 0.5
    assert "algo.loss.ppo" in " ".join(found.unused)


def test_the_page_lists_each_preset():
    page = Path("docs/algorithms/README.md").read_text()
    listed = re.findall(r"^\| `--preset (\w+)` \|", page, re.MULTILINE)
    assert sorted(listed) == sorted(METHODS)
