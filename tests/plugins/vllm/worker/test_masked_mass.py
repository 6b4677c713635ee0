"""What grammars leave of the probability, measured beside a mask as vLLM lays it on the logits of a step."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch

from rlhf_plugin_vllm.names import ANSWER
from rlhf_plugin_vllm.worker.masked_mass import MaskedMasses, allowed_mass

ALLOWED = {"below-x": [0, 1], "other-y": [2]}
"""Tokens that the grammars of two requests allow."""


def lay(scheduled, grammars, batch, logits):
    """Stand-in of vLLM's function."""
    for row, name in enumerate(batch.req_ids):
        if name in ALLOWED:
            kept = logits[row, ALLOWED[name]].clone()
            logits[row] = -math.inf
            logits[row, ALLOWED[name]] = kept


def state(temperature, answer, num_prompt):
    params = SimpleNamespace(temperature=temperature, extra_args={ANSWER: answer})
    return SimpleNamespace(sampling_params=params, num_prompt_tokens=num_prompt)


@pytest.fixture
def requests():
    free = SimpleNamespace(
        sampling_params=SimpleNamespace(temperature=1.0, extra_args=None), num_prompt_tokens=1
    )
    return {"below-x": state(2.0, "below", 3), "free-z": free, "other-y": state(0.0, "other", 5)}


def step(masses, computed, scheduled, logits):
    """One step of three requests, of which the second is below no grammar."""
    names = ["below-x", "free-z", "other-y"]
    batch = SimpleNamespace(req_ids=names, num_computed_tokens_cpu=torch.tensor(computed).numpy())
    schedule = SimpleNamespace(num_scheduled_tokens=dict(zip(names, scheduled, strict=True)))
    grammars = SimpleNamespace(structured_output_request_ids=["other-y", "gone", "below-x"])
    masses.apply(schedule, grammars, batch, logits)


def test_the_mass_is_the_sum_of_the_allowed_probabilities_after_temperature():
    logits = torch.tensor([[2.0, 0.0, -2.0]])
    kept = torch.tensor([[2.0, -math.inf, -2.0]])

    # exp(1) + exp(-1) of exp(1) + exp(0) + exp(-1): 3.0862 / 4.0862
    assert allowed_mass(logits, kept, torch.tensor([2.0])).item() == pytest.approx(0.75527, 1e-4)
    assert allowed_mass(logits, logits, torch.tensor([0.5])).item() == 1.0


def test_masses_are_kept_by_answer_and_place_and_the_masks_are_vllms(requests):
    masses = MaskedMasses(requests, lay, [3])
    logits = torch.tensor([[2.0, 0.0, -2.0, 9.0]] * 3)

    step(masses, [0, 4, 5], [3, 1, 1], logits)

    assert logits.isinf().tolist() == [
        [False, False, True, True],
        [False] * 4,
        [True, True, False, True],
    ]
    # The prompt of 3 is read: place 0. Without token 3: (exp(1) + exp(0)) of 4.0862.
    assert masses.take("below", 1, ["other"]) == pytest.approx([0.90997], rel=1e-4)
    # Of a prompt of 5, 5 are computed and 1 is read: place 1, at temperature 1. exp(-2) of exp(2) + 1 + exp(-2).
    first, second = masses.take("other", 2, [])
    assert math.isnan(first)
    assert second == pytest.approx(0.015876, rel=1e-3)


def test_a_step_that_is_computed_again_replaces_its_masses(requests):
    masses = MaskedMasses(requests, lay, [])

    step(masses, [0, 0, 0], [3, 1, 5], torch.tensor([[0.0, 0.0, 0.0, 0.0]] * 3))
    step(masses, [0, 0, 0], [3, 1, 5], torch.tensor([[0.0, 0.0, 0.0, -math.inf]] * 3))

    assert masses.take("below", 1, []) == pytest.approx([2 / 3])


def test_masses_of_answers_that_nobody_waits_for_are_dropped(requests):
    masses = MaskedMasses(requests, lay, [])
    step(masses, [0, 0, 0], [3, 1, 5], torch.zeros(3, 4))

    assert masses.take("below", 1, ["below", "new"]) is not None

    assert masses.take("other", 1, []) is None
