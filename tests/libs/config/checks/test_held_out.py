"""Options of held-out rows that contradict each other or change nothing, for every command that has them."""

import pytest

from rlhf_config.checks.held_out import (
    held_out_problems,
    held_out_without_effect,
    splits_without_effect,
)
from rlhf_config.common import HeldOutRows
from rlhf_config.layers import Layer
from rlhf_config.problems import Labels

LABELS = Labels(Layer({}, {}))


@pytest.mark.parametrize(
    ("evaluation", "train", "said", "code"),
    [
        ({"data": ("x",), "fraction": 0.1}, ["y"], "not both", "config/two-kinds-of-held-out"),
        ({"fraction": 0.1}, [], "no training data", "config/nothing-to-hold-out"),
        ({"data": ("a=x", "a=y")}, ["y"], "two sets are called 'a'", "config/set-name-twice"),
    ],
)
def test_contradictions(evaluation, train, said, code):
    (problem,) = held_out_problems(HeldOutRows(**evaluation), train, LABELS)

    assert said in str(problem)
    assert problem.code == code


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


@pytest.mark.parametrize(
    ("train", "held_out", "useless"),
    [
        (["a.jsonl"], [], {"data.split"}),
        (["a.jsonl", "b/*.csv.gz"], ["test=c.parquet"], {"data.split", "eval.split"}),
        (["a.jsonl", "folder"], ["org/set"], set()),
        ([], ["c.txt"], {"eval.split"}),
    ],
)
def test_files_have_no_splits(train, held_out, useless):
    found = splits_without_effect(train, HeldOutRows(data=tuple(held_out)))

    assert {path for path, _ in found} == useless
