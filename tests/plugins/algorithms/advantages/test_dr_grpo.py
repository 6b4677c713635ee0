"""``dr_grpo``: GRPO's advantage without the division."""

import pytest
import torch

from rlhf_core import Config
from rlhf_plugin_algorithms.advantages.dr_grpo import DrGrpo
from rlhf_plugin_algorithms.advantages.group_norm import GroupNorm, GroupNormConfig

SMALL_EPS = 1e-6


def assert_rows(result, batch, expected, tolerance=1e-6):
    for row, kept, numbers in zip(result.advantages, batch.action_mask, expected, strict=True):
        assert row[kept].tolist() == pytest.approx(numbers, abs=tolerance)


def repeated(values, batch):
    """Each row's number at all of its action tokens."""
    lengths = batch.action_mask.sum(dim=1).tolist()
    return [[value] * length for value, length in zip(values, lengths, strict=True)]


def test_dr_grpo_by_hand(golden_batch):
    """The numbers are also those of OpenRLHF 0.11.2."""
    result = DrGrpo(Config())(golden_batch)

    assert_rows(result, golden_batch, repeated([0.5, -0.5, 0.0, 0.0], golden_batch))


def test_scaling_a_group_changes_nothing_for_group_norm_and_scales_dr_grpo(make_reward_batch):
    rewards = [1.0, 0.25, -0.5]
    batch = make_reward_batch([[(1, r)] for r in rewards], [0] * 3)
    scaled = make_reward_batch([[(1, 8 * r)] for r in rewards], [0] * 3)
    norm, centered = GroupNorm(GroupNormConfig(eps=SMALL_EPS)), DrGrpo(Config())

    torch.testing.assert_close(
        norm(scaled).advantages, norm(batch).advantages, atol=1e-5, rtol=1e-5
    )
    torch.testing.assert_close(centered(scaled).advantages, 8 * centered(batch).advantages)
