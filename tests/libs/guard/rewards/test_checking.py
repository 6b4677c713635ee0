import asyncio
import fractions
import re

import numpy as np
import pytest
import torch

from rlhf_core import PluginError
from rlhf_core.contracts import RewardResult
from rlhf_core.problem import ProblemKind
from rlhf_guard.rewards.checking import (
    NotANumber,
    finite_number,
    outcome_of,
    require_score,
    score_checked,
)
from rlhf_testing.errors import has_code


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1, 1.0),
        (True, 1.0),
        (False, 0.0),
        (-0.5, -0.5),
        (fractions.Fraction(1, 4), 0.25),
        (np.float32(0.5), 0.5),
        (np.int64(3), 3.0),
        (np.bool_(True), 1.0),
        (np.array(2.0), 2.0),
        (torch.tensor(1.5), 1.5),
        (torch.tensor(1.5, requires_grad=True) * 2, 3.0),
        (torch.tensor(1.5, dtype=torch.bfloat16), 1.5),
        (torch.tensor(True), 1.0),
    ],
)
def test_one_finite_number_is_accepted(value, expected):
    number = finite_number(value)

    assert number == expected
    assert type(number) is float


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "None"),
        (float("nan"), "nan"),
        (float("-inf"), "-inf"),
        (torch.tensor(float("nan")), "nan"),
        ("1.0", r"'1\.0' \(str\)"),
        ([1.0], r"\[1\.0\] \(list\)"),
        (1j, r"1j \(complex\)"),
        (10**400, "an integer beyond the range of a float"),
        (torch.tensor([1.0]), r"a Tensor of shape \(1,\)"),
        (np.zeros((2, 3)), r"a ndarray of shape \(2, 3\)"),
        (object, r"<class 'object'> \(type\)"),
    ],
)
def test_anything_else_is_refused_by_what_it_is(value, text):
    with pytest.raises(NotANumber, match=f"^{text}"):
        finite_number(value)


def test_a_value_whose_repr_raises_is_refused_too():
    class Hostile:
        def __repr__(self):
            raise RuntimeError("no")

    with pytest.raises(NotANumber, match="<Hostile, whose repr raised RuntimeError>"):
        finite_number(Hostile())


def check(returned, count=2):
    class Returning:
        async def score(self, requests):
            return returned

    return asyncio.run(score_checked(Returning(), [None] * count))


@pytest.mark.parametrize(
    ("returned", "text"),
    [
        (None, "returned None; expected a list of 2 RewardResult"),
        ("ab", "returned 'ab' (str); expected a list"),
        ((RewardResult(reward=1) for _ in range(2)), "(generator); expected a list"),
        ([], "returned 0 results for 2 samples"),
        ([RewardResult(reward=1)] * 3, "returned 3 results for 2 samples"),
    ],
)
def test_a_wrong_collection_is_a_problem_of_the_batch(returned, text):
    problem = check(returned)

    assert problem.kind is ProblemKind.RETURNED
    assert text in problem.text


def test_a_bad_result_does_not_touch_its_neighbor():
    first, second = check([RewardResult(reward=None), RewardResult(reward=2)])

    assert (
        first.problem.text
        == "returned None; expected one finite number, which is 0 where the reward does not apply"
    )
    assert second.reward == 2.0


def test_a_bare_number_is_no_result():
    assert "expected a RewardResult" in outcome_of(1.0).problem.text


def test_an_exception_in_the_place_of_a_result_is_that_sample_s():
    assert outcome_of(ValueError("x")).problem.text == "raised ValueError: x"


def test_parts_of_a_reward_arrive_as_ints_and_floats():
    parts = ((np.int64(2), np.float32(0.5)), [5, torch.tensor(0.25)])

    outcome = outcome_of(RewardResult(reward=0.75, step_rewards=parts))

    assert outcome.step_rewards == ((2, 0.5), (5, 0.25))
    assert [type(number) for pair in outcome.step_rewards for number in pair] == [int, float] * 2
    assert outcome.problem is None


def test_the_sum_of_the_parts_is_the_reward():
    result = RewardResult.at_steps([(2, 0.5), (5, 0.25), (5, -1.0)], {"steps": 3.0})

    assert (result.reward, result.metrics) == (-0.25, {"steps": 3.0})
    assert outcome_of(result).step_rewards == ((2, 0.5), (5, 0.25), (5, -1.0))
    assert RewardResult.at_steps([]).reward == 0.0


@pytest.mark.parametrize("count", [1, 10, 1000])
def test_parts_and_a_sum_in_float32_agree(count):
    parts = np.float32([0.9, 0.1, 1 / 3, -0.7] * count)
    total = np.float32(0.0)
    for part in parts:
        total += part

    result = RewardResult(reward=total, step_rewards=tuple(enumerate(parts)))

    assert outcome_of(result).problem is None


@pytest.mark.parametrize(
    ("parts", "text"),
    [
        (((2, 0.5),), "step_rewards that add up to 0.5 and a reward of 1; expected the same"),
        (((2.0, 1.0),), "step_rewards of the wrong form .*expected pairs of an action's index"),
        (((2, float("nan")),), r"step_rewards of the wrong form \(nan\)"),
        (((2, None),), r"step_rewards of the wrong form \(None\)"),
        ((2, 1.0), "step_rewards of the wrong form"),
        (1.0, "step_rewards of the wrong form"),
        (None, "step_rewards of the wrong form"),
    ],
)
def test_parts_of_another_form_or_sum_are_refused(parts, text):
    outcome = outcome_of(RewardResult(reward=1.0, step_rewards=parts))

    assert outcome.reward is None
    assert re.search(f"^returned {text}", outcome.problem.text), outcome.problem.text


def test_a_synchronous_score_is_accepted():
    class Plain:
        def score(self, requests):
            return [RewardResult(reward=1)] * len(requests)

    assert [one.reward for one in asyncio.run(score_checked(Plain(), [None, None]))] == [1.0, 1.0]


def test_an_object_that_scores_nothing_is_named_before_it_is_asked():
    class Length:
        def __call__(self, response):
            return len(response)

    with pytest.raises(PluginError, match="Length", check=has_code("reward/not-a-function")):
        require_score(Length())


def test_an_object_with_the_method_is_a_reward():
    class Length:
        async def score(self, requests):
            return []

    reward = Length()

    assert require_score(reward) is reward


def test_a_score_of_other_arguments_is_refused_before_anything_is_generated():
    class OfResponse:
        def score(self, response, answer):
            return 1.0

    says = r"^OfResponse\.score takes \(response, answer\); expected score\(self, requests\)"
    with pytest.raises(PluginError, match=says, check=has_code("reward/wrong-arguments")):
        require_score(OfResponse())
