"""What grammars leave of the probability, measured beside a mask that is laid on the logits of a step."""

from __future__ import annotations

import math

import pytest
import torch

from rlhf_plugin_vllm.worker.masked_mass import Masked, MaskedMasses, allowed_mass

BELOW = Masked(row=0, answer="below", place=0, temperature=2.0)
OTHER = Masked(row=2, answer="other", place=1, temperature=1.0)


def step(masses, logits):
    """A step of three rows, of which the second is below no grammar."""

    def mask():
        for row, allowed in ((0, [0, 1]), (2, [2])):
            kept = logits[row, allowed].clone()
            logits[row] = -math.inf
            logits[row, allowed] = kept

    masses.measure(logits, [OTHER, BELOW], mask)


def test_the_mass_is_the_sum_of_the_allowed_probabilities_after_temperature():
    logits = torch.tensor([[2.0, 0.0, -2.0]])
    kept = torch.tensor([[2.0, -math.inf, -2.0]])

    # exp(1) + exp(-1) of exp(1) + exp(0) + exp(-1): 3.0862 / 4.0862
    assert allowed_mass(logits, kept, torch.tensor([2.0])).item() == pytest.approx(0.75527, 1e-4)
    assert allowed_mass(logits, logits, torch.tensor([0.5])).item() == 1.0


def test_masses_are_kept_by_answer_and_place_and_the_mask_is_laid():
    masses = MaskedMasses([3])
    logits = torch.tensor([[2.0, 0.0, -2.0, 9.0]] * 3)

    step(masses, logits)

    assert logits.isinf().tolist() == [
        [False, False, True, True],
        [False] * 4,
        [True, True, False, True],
    ]
    # Without token 3: (exp(1) + exp(0)) of 4.0862.
    assert masses.take("below", 1, ["other"]) == pytest.approx([0.90997], rel=1e-4)
    # exp(-2) of exp(2) + 1 + exp(-2).
    first, second = masses.take("other", 2, [])
    assert math.isnan(first)
    assert second == pytest.approx(0.015876, rel=1e-3)


def test_a_step_that_is_computed_again_replaces_its_masses():
    masses = MaskedMasses([])

    step(masses, torch.tensor([[0.0, 0.0, 0.0, 0.0]] * 3))
    step(masses, torch.tensor([[0.0, 0.0, 0.0, -math.inf]] * 3))

    assert masses.take("below", 1, []) == pytest.approx([2 / 3])


def test_masses_of_answers_that_nobody_waits_for_are_dropped():
    masses = MaskedMasses([])
    step(masses, torch.zeros(3, 4))

    assert masses.take("below", 1, ["below", "new"]) is not None

    assert masses.take("other", 1, []) is None
