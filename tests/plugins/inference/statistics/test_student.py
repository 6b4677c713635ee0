"""Quantiles against tables, closed forms and limits."""

import math
from statistics import NormalDist

import pytest

from rlhf_plugin_inference.statistics.student import student_cdf, student_quantile


@pytest.mark.parametrize(
    ("probability", "degrees", "expected"),
    [
        (0.975, 4, 2.776445),
        (0.975, 10, 2.228139),
        (0.975, 30, 2.042272),
        (0.995, 10, 3.169273),
        (0.95, 120, 1.657651),
    ],
)
def test_quantiles_are_those_of_the_tables(probability, degrees, expected):
    assert student_quantile(probability, degrees) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("probability", [0.6, 0.9, 0.975, 0.9995])
def test_one_degree_is_cauchys_and_two_have_a_closed_form(probability):
    # One degree: t = tan(pi (p - 1/2)). Two: t = (2p - 1) / sqrt(2 p (1 - p)).
    cauchy = math.tan(math.pi * (probability - 0.5))
    two = (2 * probability - 1) / math.sqrt(2 * probability * (1 - probability))

    assert student_quantile(probability, 1) == pytest.approx(cauchy, rel=1e-10)
    assert student_quantile(probability, 2) == pytest.approx(two, rel=1e-10)


def test_many_degrees_are_normal_and_the_lower_half_mirrors_the_upper():
    normal = NormalDist().inv_cdf(0.975)

    assert student_quantile(0.975, math.inf) == normal
    assert student_quantile(0.975, 1e7) == pytest.approx(normal, abs=1e-6)
    assert student_quantile(0.1, 5) == -student_quantile(0.9, 5)
    assert student_quantile(0.5, 5) == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize("degrees", [3, 7.5, 40])
@pytest.mark.parametrize("t", [-2.0, 0.3, 1.7, 4.0])
def test_the_distribution_is_the_integral_of_its_density(t, degrees):
    """Simpson's rule with 4000 steps from 0 to t."""
    scale = math.exp(math.lgamma((degrees + 1) / 2) - math.lgamma(degrees / 2))
    scale /= math.sqrt(degrees * math.pi)

    def density(x):
        return scale * (1 + x * x / degrees) ** (-(degrees + 1) / 2)

    steps, width = 4000, t / 4000
    weights = [1, *([4, 2] * (steps // 2 - 1)), 4, 1]
    area = sum(w * density(i * width) for i, w in enumerate(weights)) * width / 3

    assert student_cdf(t, degrees) == pytest.approx(0.5 + area, abs=1e-10)
