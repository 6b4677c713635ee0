"""Majority votes by hand."""

import itertools
import random

import numpy as np
import pytest

from rlhf_core.contracts import EvalEpisodes
from rlhf_plugin_inference import rlhf_eval_metrics
from rlhf_plugin_inference.eval_metrics.majority import Majority, MajorityConfig, answer_of, vote
from rlhf_testing.conformance import parametrize_checks

COMPONENTS = {component.name: component for component in rlhf_eval_metrics()}


@parametrize_checks("rlhf_eval_metrics", COMPONENTS)
def test_contract(check, subject):
    check(subject)


@pytest.mark.parametrize(
    ("answers", "passed", "expected"),
    [
        ("443", (1, 1, 0), 1.0),
        ("433", (1, 0, 0), 0.0),
        ("43", (1, 0), 0.5),  # a tie of a right and a wrong answer
        ("4321", (1, 0, 0, 0), 0.25),
        ("44", (1, 0), 0.5),  # one answer that passes half of the time
    ],
)
def test_a_vote_by_hand(answers, passed, expected):
    assert vote(list(answers), [bool(one) for one in passed]) == expected


def test_samples_without_an_answer_do_not_vote():
    assert vote([None, None, "4"], [False, False, True]) == 1.0
    assert vote([None], [True]) == 0.0


def test_a_vote_is_that_of_ties_drawn_by_lot():
    """Against a loop that draws the winner many times over all orders."""
    draw = random.Random(3)
    answers = [draw.choice("abc") for _ in range(6)]
    passed = [answer == "b" for answer in answers]
    counts = {answer: answers.count(answer) for answer in set(answers)}
    winners = [answer for answer, count in counts.items() if count == max(counts.values())]
    expected = sum(winner == "b" for winner in winners) / len(winners)

    for order in itertools.islice(itertools.permutations(range(6)), 50):
        found = vote([answers[one] for one in order], [passed[one] for one in order])
        assert found == pytest.approx(expected)


def test_the_last_match_is_the_answer():
    assert answer_of("1 + 2 = 3, no: = 4 ", r"= (\d+)") == "4"
    assert answer_of("none", r"= (\d+)") is None
    assert answer_of(" 4\n", None) == "4"


def test_the_metric_is_the_mean_over_prompts_and_named_by_the_fewest_samples():
    episodes = EvalEpisodes(
        set_name="sums",
        temperature=1.0,
        prompt=np.array([0, 0, 0, 1, 1]),
        reward=np.array([1.0, 1.0, 0.0, 0.0, 1.0]),
        passed=np.array([True, True, False, False, True]),
        num_actions=np.ones(5, np.int64),
        responses=("4", "4", "5", "5", "6"),
    )

    # 1 for the first prompt, a tie of one right answer for the second.
    assert Majority(MajorityConfig())(episodes) == {"maj@2": 0.75}


def test_a_pattern_that_is_none_is_refused():
    with pytest.raises(ValueError, match="expected a regular expression"):
        MajorityConfig(pattern="(")
