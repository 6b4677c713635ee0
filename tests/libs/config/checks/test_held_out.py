"""Options of held-out rows that contradict each other or change nothing, for every command that has them."""

import pytest

from rlhf_config.checks.held_out import held_out_problems, held_out_without_effect
from rlhf_config.common import HeldOutRows
from rlhf_config.layers import Layer
from rlhf_config.problems import Labels

LABELS = Labels(Layer({}, {}))


@pytest.mark.parametrize(
    ("evaluation", "train", "said"),
    [
        ({"data": ("x",), "fraction": 0.1}, ["y"], "not both"),
        ({"fraction": 0.1}, [], "no training data"),
        ({"data": ("a=x", "a=y")}, ["y"], "two sets are called 'a'"),
    ],
)
def test_contradictions(evaluation, train, said):
    (problem,) = held_out_problems(HeldOutRows(**evaluation), train, LABELS)

    assert said in problem


@pytest.mark.parametrize(
    ("evaluation", "useless"),
    [
        ({}, {"eval.split", "eval.max_samples", "checkpoint.best_mode"}),
        ({"fraction": 0.1}, {"eval.split"}),
        ({"data": ("x",)}, set()),
    ],
)
def test_options_without_effect(evaluation, useless):
    assert {path for path, _ in held_out_without_effect(HeldOutRows(**evaluation))} == useless
