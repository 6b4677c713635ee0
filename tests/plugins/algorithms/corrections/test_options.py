"""The components as a run sees them: light, complete, with options that mean something."""

import pytest
import torch
from pydantic import ValidationError

from rlhf_core import Config, plugins
from rlhf_core.capabilities import Chosen, check
from rlhf_core.contracts import metric_values
from rlhf_core.errors import CapabilityError
from rlhf_plugin_algorithms import rlhf_is_corrections
from rlhf_plugin_algorithms.corrections.flash_mask import FlashMaskConfig
from rlhf_plugin_algorithms.corrections.icepop import IcepopConfig
from rlhf_plugin_algorithms.corrections.importance import ImportanceConfig
from rlhf_plugin_algorithms.corrections.mis import MisConfig
from rlhf_plugin_algorithms.corrections.seq_mask_tis import SeqMaskTisConfig
from rlhf_plugin_algorithms.corrections.tis import TisConfig
from rlhf_testing.errors import has_code

NAMES = ["importance", "tis", "icepop", "seq_mask_tis", "mis", "flash_mask"]


@pytest.fixture(scope="module")
def installed():
    return plugins.load()


@pytest.mark.parametrize("name", NAMES)
def test_each_is_registered_with_what_it_needs_and_builds_with_defaults(installed, name):
    registered = installed.get("rlhf_is_corrections", name)

    assert registered.qualified == f"algorithms:{name}"
    assert registered.component.needs == {"rollout_logprobs"}
    assert registered.component.conflicts == {"renormalized_sampling", "rollout_as_old"}
    assert callable(registered.build())
    assert registered.component.summary
    for field in registered.component.config.model_fields.values():
        assert field.description


@pytest.mark.parametrize("feature", ["renormalized_sampling", "rollout_as_old"])
@pytest.mark.parametrize("name", NAMES)
def test_logprobs_that_cannot_be_compared_are_refused(installed, name, feature):
    chosen = [Chosen("--algo.correction.kind", installed.get("rlhf_is_corrections", name))]

    check(chosen, frozenset(), samples_per_prompt=1)
    with pytest.raises(
        CapabilityError, match=feature, check=has_code("config/conflicting-component")
    ):
        check(chosen, frozenset({feature}), samples_per_prompt=1)


@pytest.mark.parametrize(
    ("preset", "options"),
    [
        (TisConfig(), {"level": "token", "mode": "truncate", "high": 2.0}),
        (TisConfig(low=0.5), {"level": "token", "mode": "clip", "low": 0.5, "high": 2.0}),
        (IcepopConfig(), {"level": "token", "mode": "mask", "low": 0.5, "high": 5.0}),
        (SeqMaskTisConfig(), {"level": "geometric", "mode": "mask", "low": 0.999, "high": 1.002}),
        (MisConfig(), {"level": "sequence", "mode": "mask", "high": 2.0, "weight": "sequence"}),
        (
            FlashMaskConfig(max_weight=2.0),
            {
                "level": "geometric",
                "mode": "mask",
                "gate": "binary_kl",
                "high": 0.005,
                "max_weight": 2.0,
            },
        ),
    ],
)
def test_each_preset_is_a_setting_of_importance(preset, options, drawn, correct):
    """To the bit, on sequences that are inside the bands of the presets and on others that are not."""
    factories = {component.config: component.factory for component in rlhf_is_corrections()}
    for drift in (1e-3, 0.05, 1.0):
        case = drawn((5, 1, 8, 3), drift=drift)

        actual, expected = factories[type(preset)](preset)(*case), correct(case, **options)

        assert torch.equal(actual.weights, expected.weights)
        assert torch.equal(actual.keep, expected.keep)
        assert metric_values(actual.metrics) == metric_values(expected.metrics)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "clip", "gate": "binary_kl", "high": 0.1}, "mode clip bounds a weight"),
        ({"mode": "truncate", "gate": "tv", "high": 0.1}, "Set mode mask, or gate ratio"),
        ({"mode": "clip"}, "mode clip needs low"),
        ({"mode": "truncate", "low": 0.5}, "Leave it out, or set mode clip"),
        ({"mode": "truncate", "weight": "token"}, "weight and max_weight are for mode mask"),
        ({"mode": "clip", "low": 0.5, "max_weight": 3.0}, "weight and max_weight are for"),
        ({"mode": "mask", "weight": "off", "max_weight": 3.0}, "weight is off"),
        ({"mode": "mask", "high": 0.9}, "equal log-probs have ratio 1"),
        ({"mode": "truncate", "high": 0.9}, "Set high to at least 1"),
        ({"mode": "mask", "gate": "k3"}, "gate k3 needs high"),
        ({"mode": "mask", "gate": "k2", "low": 0.5, "high": 0.1}, "has no lower bound"),
        ({"mode": "mask", "gate": "tv", "high": 1.0}, "nothing would be dropped"),
    ],
)
def test_what_means_nothing_is_refused_with_the_reason(options, message):
    with pytest.raises(ValidationError, match=message):
        ImportanceConfig(**options)


@pytest.mark.parametrize(
    ("config", "wrong"),
    [
        (TisConfig, {"high": 0.9}),
        (TisConfig, {"low": 1.1}),
        (IcepopConfig, {"low": 0.0}),
        (IcepopConfig, {"high": float("inf")}),
        (SeqMaskTisConfig, {"max_weight": 0.5}),
        (MisConfig, {"high": 0.5}),
        (FlashMaskConfig, {"high": 0.0}),
        (FlashMaskConfig, {"low": 0.0}),
        (ImportanceConfig, {"level": "seq"}),
        (ImportanceConfig, {"gate": "k1", "mode": "mask"}),
    ],
)
def test_options_out_of_range_are_refused(config: type[Config], wrong):
    with pytest.raises(ValidationError):
        config(**wrong)


def test_a_sum_of_total_variations_may_exceed_one():
    assert ImportanceConfig(level="sequence", mode="mask", gate="tv", high=3.0).high == 3.0


def test_options_survive_being_saved_and_read():
    config = ImportanceConfig(mode="mask", gate="k3", level="geometric", high=0.01)

    assert ImportanceConfig.model_validate(config.model_dump()) == config
