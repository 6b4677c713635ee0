"""Right answers as data sets write them: the reward ``math`` reads the whole column."""

import pytest
from tests.deadlines import HANG_S

from rlhf_core import RewardError
from rlhf_plugin_rewards.cpu_limit import under_cpu_limit
from rlhf_plugin_rewards.readings import as_latex
from rlhf_testing.errors import has_code

WHOLE = [
    # A label, an answer that is equal to it, and what stands in a part of the label alone.
    (r"\{1, 2\}", r"\{2, 1\}", "2"),
    ("{1, 2}", "1,2", "2"),
    ("1, 2", r"\{1, 2\}", "2"),
    ("1 and 2", r"1 \text{ and } 2", "2"),
    ("-1, 1", r"\pm 1", "1"),
    ("x = -1 or x = 2", "-1, 2", "2"),
    ("[1, 2]", "[1,2]", "2"),
    ("(1, 2]", "(1,2]", "2"),
    ("[0, oo)", r"[0,\infty)", "0"),
    (r"(-\infty, 2) \cup (3, \infty)", r"(-\infty,2)\cup(3,\infty)", "2"),
    ("(1, 2, 3)", "(1,2,3)", "3"),
    ("(1, 2)", "(1,2)", "(2,1)"),
    ("$18", r"\$18", "8"),
    ("€20", "20", "2"),
    ("$1,234.50", "1234.5", "234.5"),
    ("18 dollars", "18", "8"),
    ("18", r"18 \text{ dollars}", "1"),
    ("18", "18 dollars", "1"),
    (r"\frac{1}{2}", "0.5", "2"),
    (r"\dfrac12", "1/2", "12"),
    ("1,234", "1234", "234"),
    ("1 234", "1234", "234"),
    ("x=3", "3", "x"),
    ("y = 2x + 1", "2x+1", "1"),
    ("3x", "3x", "3"),
    ("2pi", r"2\pi", "2"),
    (r"2\sqrt{3}", r"2\sqrt 3", "3"),
    ("ln 2", r"\ln 2", "2"),
    ("50%", r"50\%", "0"),
    ("50 percent", "50%", "0"),
    ("5 m^2", "5", "2"),
    ("90 degrees", r"90^\circ", "9"),
    ("1.5e-3", "0.0015", "1.5"),
    ("3 x 10^5", "300000", "10^5"),
    ("5!", "120", "5"),
    ("3:4", "3/4", "3"),
    ("2 1/2", "5/2", "1/2"),
    (r"2\frac{1}{2}", "2.5", r"\frac{1}{2}"),
    ("x > 3", "x>3", "3"),
    ("2 + 3i", "2+3i", "3"),
    ("B", r"\text{(B)}", "A"),
    ("(B)", "B", "A"),
    ("Yes", r"\text{yes}", "No"),
    ("silent", r"\text{silent}", "listen"),
    ("no solution", r"\text{no solution}", "0"),
    ("9 * 2 = $18 a day.\n#### 18", "18", "9"),
    ("The answer is $\\frac{3}{4}$.", "0.75", "4"),
    ("The final answer is (1, 2].", "(1,2]", "2"),
    ("It takes 18 days.", "18", "8"),
    (["18"], "18", "8"),
    (0.5, r"\frac12", "5"),
]


@pytest.mark.parametrize(("label", "right", "part"), WHOLE)
def test_a_label_is_read_whole(one, request_for, label, right, part):
    assert one("math", request_for(rf"so \boxed{{{right}}}.", answer=label)).reward == 1.0
    assert one("math", request_for(rf"so \boxed{{{part}}}.", answer=label)).reward == 0.0


@pytest.mark.parametrize("label", ["3 apples and 4 pears", "Between 3 and 5", "1 hour 30 minutes"])
def test_a_label_that_may_mean_several_answers_is_refused(one, request_for, label):
    with pytest.raises(RewardError, check=has_code("reward/ambiguous-label")):
        one("math", request_for("3", answer=label))


@pytest.mark.parametrize("label", [["1", "2"], {"value": 1}, float("nan"), [None]])
def test_a_label_of_another_type_is_refused(one, request_for, label):
    with pytest.raises(RewardError, check=has_code("reward/unusable-label")):
        one("math", request_for("1", answer=label))


def test_a_label_that_nothing_is_equal_to_is_refused(one, request_for):
    with pytest.raises(RewardError, check=has_code("reward/no-expression")):
        one("math", request_for("1", answer="1/0"))


@pytest.mark.parametrize("text", ["x^2 + 1", r"\frac{a}{b}", "3xyz", "A, B", "Paris, France"])
def test_what_needs_no_rewriting_stays(text):
    assert as_latex(text) == text


@pytest.mark.parametrize("piece", ["1", "1+", "a", " ", "answer is ", "1 000 ", "x 10^", "5 m "])
def test_reading_takes_time_in_proportion_to_the_length(piece):
    """Time with the square of the length would be a quarter of an hour here; a response may be as long."""
    under_cpu_limit(HANG_S / 10, lambda: as_latex(piece * 300_000 + "!"))
