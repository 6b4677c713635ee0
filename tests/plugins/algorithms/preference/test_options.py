"""The plugin as a run sees it: light to import, complete, with needs that are declared and options in range."""

import pytest
from pydantic import ValidationError

from rlhf_plugin_algorithms.preference.dpo import DpoConfig
from rlhf_plugin_algorithms.preference.ipo import IpoConfig
from rlhf_plugin_algorithms.preference.kto import KtoConfig
from rlhf_plugin_algorithms.preference.orpo import OrpoConfig
from rlhf_plugin_algorithms.preference.simpo import SimpoConfig
from rlhf_testing.checks import check_plugin

REFERENCE = frozenset({"ref_logprobs"})
NEEDS = {
    "dpo": REFERENCE,
    "cdpo": REFERENCE,
    "robust": REFERENCE,
    "ipo": REFERENCE,
    "hinge": REFERENCE,
    "apo_zero": REFERENCE,
    "apo_down": REFERENCE,
    "bco": REFERENCE,
    "aot": REFERENCE | {"matched_pairs"},
    "aot_unpaired": REFERENCE | {"matched_pairs"},
    "kto": REFERENCE | {"mismatched_kl"},
    "orpo": frozenset(),
    "simpo": frozenset(),
}


def test_the_plugin_registers_its_losses_with_their_needs():
    registry = check_plugin("rlhf_plugin_algorithms").registries["rlhf_preference_losses"]

    assert {entry.name: entry.component.needs for entry in registry} == NEEDS
    unpaired = [entry.name for entry in registry if entry.component.provides]
    assert unpaired == ["kto"]


@pytest.mark.parametrize(
    ("config", "wrong"),
    [
        (DpoConfig, {"beta": 0.0}),
        (DpoConfig, {"beta": float("inf")}),
        (DpoConfig, {"label_smoothing": 0.1}),
        (DpoConfig, {"alpha": 0.5}),
        (DpoConfig, {"f_divergence": "alpha_divergence"}),
        (DpoConfig, {"f_divergence": "alpha_divergence", "alpha": 1.0}),
        (DpoConfig, {"f_divergence": "kl"}),
        (IpoConfig, {"beta": 1e-9}),
        (KtoConfig, {"desirable_weight": 0.0}),
        (KtoConfig, {"undesirable_weight": -1.0}),
        (OrpoConfig, {"lambda_": 0.0}),
        (SimpoConfig, {"gamma": -0.1}),
    ],
)
def test_options_out_of_range_are_refused(config, wrong):
    with pytest.raises(ValidationError):
        config(**wrong)
