import pytest

from rlhf_core import RewardError
from rlhf_core.problem import MAX_TEXT, problem_of


def test_the_text_of_an_exception_is_cut():
    assert len(problem_of(ValueError("x" * 10**6)).text) < MAX_TEXT + 100


def test_the_line_that_raised_is_kept_also_behind_a_translation():
    def fails():
        raise KeyError("label")

    def translates():
        try:
            fails()
        except KeyError as error:
            raise RewardError("no label") from error

    with pytest.raises(RewardError) as caught:
        translates()
    problem = problem_of(caught.value)

    assert problem.text == "raised RewardError: no label"
    assert problem.where[-1].endswith('in fails: raise KeyError("label")')


def test_a_recursion_is_told_in_a_few_lines():
    def recurse():
        recurse()

    with pytest.raises(RecursionError) as caught:
        recurse()

    assert len(problem_of(caught.value).where) == 3
