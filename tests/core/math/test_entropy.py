"""The coefficient of a targeted entropy bonus, and the tokens of the highest entropy."""

import numpy as np
import pytest

from rlhf_core.math import adapted_entropy_coef, highest_entropy


@pytest.mark.parametrize(
    ("entropy", "expected"),
    [
        (0.1, 0.015),  # below 0.2: 0.01 + 0.005
        (0.2, 0.005),  # at the target: 0.01 - 0.005
        (0.3, 0.005),
    ],
)
def test_the_coefficient_rises_below_the_target_and_falls_otherwise(entropy, expected):
    assert adapted_entropy_coef(0.01, entropy, target=0.2, step=0.005) == pytest.approx(expected)


def test_it_never_falls_below_zero():
    """A negative coefficient would reward a policy for being sure."""
    assert adapted_entropy_coef(0.003, 1.0, target=0.2, step=0.005) == 0.0
    assert adapted_entropy_coef(0.0, 1.0, target=0.2, step=0.005) == 0.0


def test_it_grows_without_bound_while_the_entropy_stays_low():
    """The integral of the error's sign: a coefficient that is too small for the task is found in the end."""
    coef = 0.0
    for _ in range(100):
        coef = adapted_entropy_coef(coef, 0.05, target=0.2, step=0.005)

    assert coef == pytest.approx(0.5)


def test_a_policy_that_answers_to_the_bonus_settles_at_the_target():
    """Entropy that is ten times the coefficient ends within one step's worth of the target, 0.05."""
    coef = 0.0
    for _ in range(200):
        coef = adapted_entropy_coef(coef, 10 * coef, target=0.2, step=0.005)

    assert abs(10 * coef - 0.2) <= 0.05 + 1e-9


ENTROPIES = np.array([0.5, 2.0, 0.0, 1.0, 1.5], dtype=np.float32)


@pytest.mark.parametrize(
    ("share", "expected"),
    [
        (1.0, [1, 1, 1, 1, 1]),
        # The quantile at 0.8 is at place 3.2 of the sorted [0, 0.5, 1, 1.5, 2]: 1.5 + 0.2 * 0.5 = 1.6.
        (0.2, [0, 1, 0, 0, 0]),
        (0.25, [0, 1, 0, 0, 1]),  # at place 3: 1.5, which is among them
        (0.5, [0, 1, 0, 1, 1]),  # at place 2: 1.0
        (0.0, [0, 1, 0, 0, 0]),  # the largest one alone
    ],
)
def test_the_highest_entropies_are_those_from_the_quantile_on(share, expected):
    assert highest_entropy(ENTROPIES, share).tolist() == expected


def test_tokens_that_do_not_count_have_no_part_in_the_quantile():
    counted = np.array([1, 0, 1, 1, 0], dtype=np.float32)  # 0.5, 0.0 and 1.0

    # At share 0.5 the quantile is their median, 0.5.
    assert highest_entropy(ENTROPIES, 0.5, counted).tolist() == [1, 0, 0, 1, 0]
    assert highest_entropy(ENTROPIES, 1.0, counted).tolist() == counted.tolist()
    assert highest_entropy(ENTROPIES, 0.5, np.zeros(5, np.float32)).tolist() == [0] * 5
    assert highest_entropy(np.zeros(0, np.float32), 0.5).tolist() == []


def test_of_equal_entropies_all_are_among_the_highest():
    assert highest_entropy(np.zeros(4, np.float32), 0.25).tolist() == [1] * 4
    assert highest_entropy(np.array([1, 2, 2, 2], np.float32), 0.3).tolist() == [0, 1, 1, 1]


@pytest.mark.parametrize("share", [0.1, 0.3, 0.7, 0.9])
def test_rounding_of_the_share_takes_no_token_out(share):
    """1 - 0.7 is 0.30000000000000004: the quantile at place 3 of 11 tokens must still be the token at 3."""
    entropies = np.random.default_rng(3).random(11).astype(np.float32)

    chosen = highest_entropy(entropies, share)

    assert chosen.sum() == round(share * 10) + 1


@pytest.mark.parametrize("seed", range(5))
def test_it_is_what_a_plain_loop_over_sorted_entropies_finds_in_any_order(seed):
    draw = np.random.default_rng(seed)
    entropies, share = draw.exponential(size=57).astype(np.float32), float(draw.random())
    ordered = sorted(entropies.tolist())
    place = (1.0 - share) * 56
    below = int(place)
    above = min(below + 1, 56)
    tau = np.float32(ordered[below] + (place - below) * (ordered[above] - ordered[below]))
    expected = [1.0 if entropy >= tau else 0.0 for entropy in entropies]

    assert highest_entropy(entropies, share).tolist() == expected
    order = draw.permutation(57)
    assert highest_entropy(entropies[order], share).tolist() == np.array(expected)[order].tolist()
