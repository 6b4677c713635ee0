"""Longest starts that sequences share with earlier ones, by hand and against a slow loop."""

import numpy as np
import pytest

from rlhf_torch.rows.prompt_sharing import (
    Starts,
    alphabetic,
    common_with_the_one_before,
    longest_starts,
)


def tokens(*words):
    return [np.array([ord(letter) for letter in word], dtype=np.int64) for word in words]


def test_starts_by_hand():
    found = longest_starts(tokens("abcd", "abce", "xy", "abcef", "ab", "abcef", "x"))

    assert found.lengths.tolist() == [0, 3, 0, 4, 2, 5, 1]
    assert found.sources[[0, 2]].tolist() == [0, 2]
    assert found.sources[[1, 3, 5, 6]].tolist() == [0, 1, 3, 2]


def test_one_sequence_shares_nothing():
    assert longest_starts(tokens("abc")).lengths.tolist() == [0]
    assert longest_starts([]).lengths.tolist() == []


@pytest.mark.parametrize("seed", range(20))
def test_starts_are_those_of_a_slow_loop(seed):
    rng = np.random.default_rng(seed)
    sequences = [rng.integers(0, 2, rng.integers(1, 9)) for _ in range(30)]

    found = longest_starts(sequences)

    for row, own in enumerate(sequences):
        shared = [common_with_the_one_before([other, own])[1] for other in sequences[:row]]
        assert found.lengths[row] == max(shared, default=0)
        if found.lengths[row]:
            assert found.sources[row] == shared.index(found.lengths[row])
        else:
            assert found.sources[row] == row


def test_alphabetic_order_is_that_of_numbers():
    sequences = [np.array(one, dtype=np.int64) for one in ([300], [2, 70_000], [2], [2, 9], [2])]

    assert alphabetic(sequences) == [2, 4, 3, 1, 0]


@pytest.mark.parametrize(
    ("words", "is_star"),
    [
        (("abx", "aby", "abz"), True),
        (("abx", "aby", "cd", "ce"), True),
        (("abx", "aby", "abyz"), False),  # goes on from a sample
        (("abx", "aby", "axz"), False),  # two forks of one sequence
        (("ab", "cd"), True),
    ],
)
def test_samples_of_prompts_are_stars(words, is_star):
    assert longest_starts(tokens(*words)).is_star is is_star


def test_sequences_that_share_nothing_are_their_own_source():
    starts = Starts.none(2)
    assert (starts.lengths.tolist(), starts.sources.tolist()) == ([0, 0], [0, 1])
