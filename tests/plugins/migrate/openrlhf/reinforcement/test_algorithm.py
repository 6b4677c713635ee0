"""Estimator, loss, KL and correction, as several flags mean them together."""

import math

import pytest
import torch

from rlhf_core import plugins as plugin_loader
from rlhf_plugin_migrate.openrlhf.reinforcement.algorithm import correction
from rlhf_plugin_migrate.table.outcome import Status

GROUP = "--rollout.n_samples_per_prompt 4 --algo.advantage.estimator"


def test_the_defaults_of_openrlhf_are_ppo_with_a_critic(outcome):
    settings, _ = outcome("")

    assert settings["algo.advantage.estimator"] == "gae"
    assert settings["algo.advantage.gae.lambda_"] == 1.0
    assert settings["algo.kl.coef"] == 0.01
    assert settings["algo.kl.mode"] == "reward"
    assert (settings["algo.loss.ppo.clip_low"], settings["algo.loss.ppo.clip_high"]) == (0.2, 0.2)


@pytest.mark.parametrize("name", ["gae", "reinforce", "reinforce_baseline"])
def test_whitening_by_the_mean_alone(outcome, name):
    settings, _ = outcome(f"{GROUP} {name} --algo.advantage.no_std_norm")

    assert settings[f"algo.advantage.{name}.whiten"] == "mean"


@pytest.mark.parametrize("name", ["rloo", "group_norm", "dr_grpo", "flash_reinforce"])
def test_estimators_without_whitening_or_discount_have_neither(outcome, name):
    settings, rows = outcome(
        f"{GROUP} {name} --algo.advantage.no_std_norm --algo.advantage.gamma 0.9"
    )

    assert settings["algo.advantage.estimator"] == name
    assert not [path for path in settings if path.startswith(f"algo.advantage.{name}.")]
    assert rows["--algo.advantage.gamma 0.9"].status is Status.NOTHING


def test_the_aggregation_is_written_out_for_estimators_with_one_of_their_own(outcome):
    settings, _ = outcome(f"{GROUP} dr_grpo")

    assert settings["algo.loss.aggregation"] == "token-mean"


def test_gspo_averages_by_sequence_and_has_openrlhfs_wide_bounds(outcome):
    settings, rows = outcome(f"{GROUP} rloo --actor.policy_loss_type gspo --actor.dual_clip 3")

    assert settings["algo.loss.aggregation"] == "seq-mean-token-mean"
    assert settings["algo.loss.gspo.clip_high"] == 0.2
    assert rows["--actor.dual_clip 3"].status is Status.MISSING


def test_gspo_with_a_correction_takes_the_sampler_for_the_old_policy(outcome):
    settings, _ = outcome(
        f"{GROUP} rloo --actor.policy_loss_type gspo --algo.advantage.is_correction_level token"
    )

    assert settings["algo.loss.old_logprobs"] == "rollout"
    assert "algo.correction.kind" not in settings


def test_a_kl_aggregated_by_sequence_is_reported(outcome):
    _, rows = outcome(
        f"{GROUP} rloo --algo.kl.use_loss --algo.kl.estimator k3 "
        "--actor.loss_agg_mode seq-mean-token-mean"
    )

    assert "the KL" in rows["--actor.loss_agg_mode seq-mean-token-mean"].text


def test_k1_in_the_loss_becomes_k2(outcome):
    settings, rows = outcome("--algo.kl.use_loss")

    assert (settings["algo.kl.mode"], settings["algo.kl.estimator"]) == ("loss", "k2")
    assert rows["--algo.kl.use_loss"].status is Status.DIFFERS


def test_k1_with_the_unbiased_gradient_stays(outcome):
    settings, _ = outcome("--algo.kl.use_loss --algo.kl.unbiased_gradient")

    assert settings["algo.kl.estimator"] == "k1"
    assert settings["algo.kl.unbiased_gradient"] is True
    assert "algo.kl.tail" not in settings


def test_without_a_coefficient_there_is_no_kl_and_no_reference(outcome):
    settings, rows = outcome("--algo.kl.init_coef 0 --algo.kl.use_loss --ref.num_nodes 2")

    assert [path for path in settings if path.startswith("algo.kl.")] == ["algo.kl.coef"]
    assert "runtime.ray.ranks.reference" not in settings
    assert rows["--ref.num_nodes 2"].status is Status.NOTHING


def test_a_target_adapts_the_coefficient(outcome):
    settings, _ = outcome("--algo.kl.target 6 --algo.kl.horizon 5000")

    assert (settings["algo.kl.target"], settings["algo.kl.horizon"]) == (6.0, 5000)


@pytest.mark.parametrize(
    ("flags", "kind", "options"),
    [
        ("level token --mode clip", "tis", {"low": 0.5, "high": 5.0}),
        ("level token", "icepop", {"low": 0.5, "high": 5.0}),
        ("level seq", "seq_mask_tis", {"low": 0.5, "high": 5.0}),
        ("level seq --gating binary_kl --threshold 0.01", "flash_mask", {"high": 0.01}),
        ("level token --mode clip --threshold 3", "tis", {"low": "none", "high": 3.0}),
        ("level token --threshold 3", "importance",
         {"level": "token", "mode": "mask", "gate": "ratio", "high": 3.0}),
        ("level token --gating tv --threshold 0.2", "importance",
         {"level": "token", "mode": "mask", "gate": "tv", "high": 0.2}),
        ("level seq --gating tv --threshold 0.2", "importance",
         {"level": "geometric", "mode": "mask", "gate": "tv", "high": 0.2}),
    ],
)  # fmt: skip
def test_the_four_flags_of_the_correction(outcome, flags, kind, options):
    text = flags.replace("level", "--algo.advantage.is_correction_level")
    for name in ("mode", "gating", "threshold"):
        text = text.replace(f"--{name}", f"--algo.advantage.is_correction_{name}")
    settings, _ = outcome(text)

    prefix = f"algo.correction.{kind}."
    found = {
        path.removeprefix(prefix): v for path, v in settings.items() if path.startswith(prefix)
    }
    assert settings["algo.correction.kind"] == kind
    assert found == options


@pytest.mark.parametrize(
    ("old", "kind"), [("tis", "tis"), ("icepop", "icepop"), ("seq-mask-tis", "seq_mask_tis")]
)
def test_the_three_names_of_before(outcome, old, kind):
    flags = "--algo.advantage.is_correction_enable --algo.advantage.is_correction_type"
    settings, _ = outcome(f"{flags} {old} --algo.advantage.is_correction_threshold 0.8 1.5")

    assert settings["algo.correction.kind"] == kind
    assert settings[f"algo.correction.{kind}.high"] == 1.5


CORRECTIONS = [
    (level, mode, "ratio", low, high)
    for level, mode in (("token", "clip"), ("token", "mask"), ("seq", "mask"))
    for low, high in ((0.5, 5.0), (0.0, 1.3), (0.9, 1.05))
]
CORRECTIONS += [
    (level, "mask", gate, 0.0, high)
    for level in ("token", "seq")
    for gate in ("binary_kl", "tv")
    for high in (0.05, 0.2)
]


@pytest.mark.parametrize(("level", "mode", "gate", "low", "high"), CORRECTIONS)
def test_our_correction_gives_openrlhfs_coefficients(level, mode, gate, low, high):
    """The coefficient of each token, by OpenRLHF's definition in a slow loop."""
    old = torch.log(torch.tensor([[0.6, 0.6, 0.2], [0.5, 0.45, 0.5]]))
    sampled = torch.log(torch.tensor([[0.4, 0.5, 0.3], [0.5, 0.5, 0.5]]))
    mask = torch.tensor([[True, True, True], [True, True, False]])
    kind, options = correction(level, mode, gate, low, high)
    component = next(
        entry
        for entry in plugin_loader.load().registries["rlhf_is_corrections"]
        if entry.name == kind
    ).component
    given = {name: None if value == "none" else value for name, value in options.items()}
    result = component.factory(component.config(**given))(old, sampled, mask)
    ours = torch.where(result.keep, result.weights, 0.0)[mask].tolist()

    assert ours == pytest.approx(
        _coefficients(old.tolist(), sampled.tolist(), mask.tolist(), level, mode, gate, low, high),
        rel=1e-5,
    )


def _coefficients(old, sampled, mask, level, mode, gate, low, high):
    found = []
    for row_old, row_sampled, row_mask in zip(old, sampled, mask, strict=True):
        pairs = [(a, b) for a, b, on in zip(row_old, row_sampled, row_mask, strict=True) if on]
        stats = []
        for log_q, log_p in pairs:
            p, q = math.exp(log_p), math.exp(log_q)
            stats.append({
                "ratio": log_q - log_p,
                "binary_kl": p * math.log(p / q) + (1 - p) * math.log((1 - p) / (1 - q)),
                "tv": abs(p - q),
            }[gate])  # fmt: skip
        if level == "seq":
            stats = [sum(stats) / len(stats)] * len(stats)
        if gate == "ratio":
            stats = [math.exp(stat) for stat in stats]
        for (log_q, log_p), stat in zip(pairs, stats, strict=True):
            weight = math.exp(log_q - log_p)
            kept = weight if low <= stat <= high else 0.0
            found.append(min(max(stat, low), high) if mode == "clip" else kept)
    return found
