"""The numbers of OpenRLHF 0.11.2, and the same batch by hand."""

import pytest
import torch

from rlhf_core import Config
from rlhf_core.batch.metric import metric_values
from rlhf_core.math import aggregate
from rlhf_plugin_algorithms import rlhf_is_corrections
from rlhf_plugin_algorithms.corrections.flash_mask import FlashMaskConfig
from rlhf_plugin_algorithms.corrections.icepop import Icepop, IcepopConfig
from rlhf_plugin_algorithms.corrections.importance import ImportanceConfig
from rlhf_plugin_algorithms.corrections.mis import MisConfig
from rlhf_plugin_algorithms.corrections.seq_mask_tis import SeqMaskTisConfig
from rlhf_plugin_algorithms.corrections.tis import TisConfig

TOKENS, SEQUENCES, CLIPPED = (
    "correction/dropped_tokens",
    "correction/dropped_sequences",
    "correction/clipped_weights",
)


FACTORIES = {component.config: component.factory for component in rlhf_is_corrections()}


def loss_of(config: Config, case, effect, mode="token-mean"):
    """The loss of ratio 1 and advantage 1, and the metrics."""
    result = FACTORIES[type(config)](config)(*case)
    loss = aggregate(
        -effect(result), case.mask, mode, num_actions=5, num_sequences=2, max_actions=3
    )
    return loss.item(), metric_values(result.metrics)


@pytest.mark.parametrize(
    ("config", "loss", "metric", "share"),
    [
        # (1.5 + 2 + 0.5 + 1 + 0.9) / 5
        (TisConfig(low=0.5, high=2.0), -1.18, CLIPPED, 0.4),
        # (1.5 + 1 + 0.9) / 5
        (IcepopConfig(low=0.5, high=2.0), -0.68, TOKENS, 0.4),
        # geometric means 1.21644 and 0.948683: (1 + 0.9) / 5
        (SeqMaskTisConfig(low=0.8, high=1.1), -0.38, SEQUENCES, 0.5),
        # binary KL 0.081093, 0.334795, 0.223144 and 0, 0.005025
        (
            ImportanceConfig(level="token", mode="mask", gate="binary_kl", high=0.1),
            -0.68,
            TOKENS,
            0.4,
        ),
        # means 0.213011 and 0.002513
        (FlashMaskConfig(high=0.1), -0.38, SEQUENCES, 0.5),
        # 0.2, 0.4, 0.3 and 0, 0.05
        (ImportanceConfig(level="token", mode="mask", gate="tv", high=0.25), -0.68, TOKENS, 0.4),
    ],
)
def test_losses_and_filter_ratios_are_those_of_openrlhf(
    measured, effect, config, loss, metric, share
):
    actual, metrics = loss_of(config, measured, effect)

    assert actual == pytest.approx(loss, abs=1e-6)
    assert metrics[metric] == pytest.approx(share)


def test_flash_reinforce_with_its_own_aggregation(measured, effect):
    """(0 + (1 + 0.9) / 2) / 2: a dropped sequence still counts as one of two."""
    actual, metrics = loss_of(FlashMaskConfig(high=0.1), measured, effect, "seq-mean-token-mean")

    assert actual == pytest.approx(-0.475, abs=1e-6)
    assert metrics[SEQUENCES] == 0.5


def test_each_sequence_carries_its_ratio_in_mis(measured, effect):
    """1.5 * 3 * 0.4 = 1.8 at 3 tokens and 1 * 0.9 at 2: (5.4 + 1.8) / 5; with a bound of 1.5 only the second."""
    assert loss_of(MisConfig(), measured, effect)[0] == pytest.approx(-1.44)
    assert loss_of(MisConfig(high=1.5), measured, effect)[0] == pytest.approx(-0.36)
    assert loss_of(MisConfig(low=0.95), measured, effect)[0] == pytest.approx(-1.08)


def test_tis_without_a_lower_bound_leaves_small_weights_alone(measured, effect):
    """(1.5 + 2 + 0.4 + 1 + 0.9) / 5"""
    loss, metrics = loss_of(TisConfig(), measured, effect)

    assert loss == pytest.approx(-1.16)
    assert metrics[CLIPPED] == pytest.approx(0.2)


def test_the_published_bounds_of_each_preset(measured, effect):
    """icepop: all but 0.4, (1.5 + 3 + 1 + 0.9) / 5; the narrow bands on sequences drop both or the first alone."""
    assert loss_of(IcepopConfig(), measured, effect)[0] == pytest.approx(-1.28)
    assert loss_of(SeqMaskTisConfig(), measured, effect)[0] == 0.0
    assert loss_of(FlashMaskConfig(), measured, effect)[0] == pytest.approx(-0.38)


def test_the_weight_of_kept_tokens_can_be_bounded(measured, effect):
    """(1.5 + 2 + 0.4 + 1 + 0.9) / 5 with nothing dropped, one of five weights bounded."""
    config = SeqMaskTisConfig(low=0.5, high=5.0, max_weight=2.0)
    loss, metrics = loss_of(config, measured, effect)

    assert loss == pytest.approx(-1.16)
    assert metrics == pytest.approx(
        {"correction/weight": 1.16, TOKENS: 0.0, SEQUENCES: 0.0, CLIPPED: 0.2}
    )


def test_the_mean_weight_is_of_kept_tokens(measured, effect):
    """(1.5 + 1 + 0.9) / 3"""
    _, metrics = loss_of(IcepopConfig(high=2.0), measured, effect)

    assert metrics["correction/weight"] == pytest.approx(3.4 / 3)
    assert metrics[SEQUENCES] == 0.0


def test_dropped_tokens_keep_their_weight_beside_the_mask(measured):
    """A loss that puts the weights on itself, and one that does not, drop them in the same way."""
    result = Icepop(IcepopConfig(high=2.0))(*measured)

    expected = torch.tensor([[1.5, 3.0, 0.4], [1.0, 0.9, 0.0]], dtype=torch.float64)
    torch.testing.assert_close(result.weights, expected)
    assert result.keep.tolist() == [[True, False, False], [True, True, False]]
