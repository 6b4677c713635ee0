"""The curve and the numbers of a notebook, and where there is none."""

import math
from xml.etree import ElementTree

from rlhf.curve import curve_of
from rlhf.display import notebook, numbers_of


def test_a_test_runs_in_no_notebook():
    assert notebook() is None


def test_the_curve_is_a_picture_of_finite_values():
    rows = [{"step": n, "reward/mean": value} for n, value in enumerate([0.0, 1.0, math.inf, 0.5])]

    picture = ElementTree.fromstring(curve_of(rows))

    points = picture[0].attrib["points"].split()
    # 480 x 120: the first at the bottom left, the second at the top, the last halfway up on the right.
    assert points == ["0.0,120.0", "160.0,0.0", "480.0,60.0"]


def test_a_constant_and_a_single_value_are_no_error():
    constant = [{"step": n, "reward/mean": 2.0} for n in range(3)]

    assert "2 to 2" in curve_of(constant)
    assert curve_of(constant[:1]) == curve_of([]) == curve_of([{"step": 1}]) == ""


def test_numbers_are_those_that_a_run_has_and_names_are_escaped():
    text = numbers_of({"reward/mean": 0.5, "other": 1.0, "eval/<b>/T0/reward": 0.25})

    assert text == " &middot; reward/mean 0.5 &middot; eval/&lt;b&gt;/T0/reward 0.25"
