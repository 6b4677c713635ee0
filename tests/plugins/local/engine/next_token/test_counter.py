"""The counter generator: known bits, uniform, and unrelated from token to token and from seed to seed."""

from __future__ import annotations

import math

import pytest
import torch

from rlhf_plugin_local.engine.next_token import sampling as counter
from rlhf_plugin_local.engine.next_token.sampling import exponentials, signed_seed, uniforms

MASK = (1 << 64) - 1


def mix(z: int) -> int:
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def slow_state(seed: int, index: int) -> int:
    """The same in Python's unbounded integers, as SplitMix64 is usually written."""
    return (mix(seed & MASK) + 0x9E3779B97F4A7C15 * (index + 1)) & MASK


def slow_uniform(seed: int, index: int) -> float:
    return (mix(slow_state(seed, index)) >> 11) / 2.0**53


def slow_exponential(seed: int, index: int, place: int) -> float:
    upper = mix(slow_state(slow_state(seed, index), place)) >> 12
    return -math.log((upper + 0.5) / 2.0**52)


def uniform_of(seeds: list[int], indices: list[int]) -> torch.Tensor:
    return uniforms(torch.tensor([signed_seed(seed) for seed in seeds]), torch.tensor(indices))


def test_first_numbers_of_seed_zero_are_those_of_splitmix64():
    # mix(0) is 0, so seed 0 is the published generator started at 0: its first output is 0xE220A8397B1DCDAF.
    expected = (0xE220A8397B1DCDAF >> 11) / 2.0**53

    assert uniform_of([0], [0]).item() == expected


def test_it_equals_a_slow_implementation_for_any_64_bits():
    seeds = [0, 1, 2**31, 2**62 + 12345, 2**63 - 1, 2**63, 2**64 - 1, -1, -(2**63)]
    indices = [0, 1, 2, 1000, 10**6, 7, 0, 3, 5]

    actual = uniform_of(seeds, indices)

    expected = [slow_uniform(*pair) for pair in zip(seeds, indices, strict=True)]
    assert actual.tolist() == expected


def test_a_negative_seed_is_the_unsigned_one_with_the_same_bits():
    assert uniform_of([-1], [4]).item() == uniform_of([2**64 - 1], [4]).item()


def chi_square(values: torch.Tensor, bins: int) -> float:
    counts = torch.histc(values, bins=bins, min=0.0, max=1.0)
    expected = len(values) / bins
    return float(((counts - expected) ** 2 / expected).sum())


def test_numbers_are_uniform_over_seeds_and_over_positions():
    # 99.9 % quantile of chi-square with 63 degrees of freedom: 103.4.
    over_seeds = uniform_of(list(range(20_000)), [3] * 20_000)
    over_positions = uniform_of([12345] * 20_000, list(range(20_000)))

    assert chi_square(over_seeds, 64) < 103.4
    assert chi_square(over_positions, 64) < 103.4


def test_neighboring_positions_and_neighboring_seeds_are_unrelated():
    n = 20_000
    base = uniform_of(list(range(n)), [0] * n)
    for other in (
        uniform_of(list(range(n)), [1] * n),
        uniform_of(list(range(1, n + 1)), [0] * n),
        # The state of seed s + golden at position i must not be that of seed s at i + 1.
        uniform_of([seed + 0x9E3779B97F4A7C15 for seed in range(n)], [0] * n),
    ):
        correlation = float(torch.corrcoef(torch.stack([base, other]))[0, 1])
        joint = chi_square((base * 8).floor() / 8 + other / 8, 64)

        assert abs(correlation) < 4 / math.sqrt(n)
        assert joint < 103.4
    shifted = uniform_of([0x9E3779B97F4A7C15], [0])
    assert shifted.item() != uniform_of([0], [1]).item()


def test_exponential_numbers_equal_a_slow_implementation():
    seeds, indices = [0, 2**31, 2**63 - 1, -1, -(2**63)], [0, 5, 1000, 7, 10**6]

    actual = exponentials(torch.tensor(seeds), torch.tensor(indices), 3)

    expected = [
        [slow_exponential(seed, index, place) for place in range(3)]
        for seed, index in zip(seeds, indices, strict=True)
    ]
    # The logarithm may differ in its last bit.
    torch.testing.assert_close(
        actual, torch.tensor(expected, dtype=torch.float64), atol=0.0, rtol=1e-13
    )


@pytest.mark.parametrize(("bits", "expected"), [(0, 53 * math.log(2)), (-1, 2.0**-53)])
def test_exponential_numbers_are_neither_zero_nor_infinite(bits, expected, monkeypatch):
    monkeypatch.setattr(counter, "_mix", lambda mixed: torch.full_like(mixed, bits))

    actual = exponentials(torch.tensor([1]), torch.tensor([2]), 1).item()

    assert math.isclose(actual, expected, rel_tol=1e-12)


def test_exponential_numbers_are_so_over_places_tokens_and_seeds():
    n = 20_000
    zero = torch.zeros(n, dtype=torch.int64)
    over_places = exponentials(zero[:1] + 9, zero[:1] + 4, n)[0]
    over_tokens = exponentials(zero + 9, torch.arange(n), 3)
    over_seeds = exponentials(torch.arange(n), zero, 3)
    several = [over_places, *over_tokens.unbind(1), *over_seeds.unbind(1)]
    for values in several:
        assert chi_square((-values).exp(), 64) < 103.4
    correlations = torch.corrcoef(torch.stack(several)).fill_diagonal_(0.0)
    assert float(correlations.abs().max()) < 4.5 / math.sqrt(n)
    # Neighboring places of a token, and one place of neighboring tokens.
    for other in (over_tokens[:, 1], over_tokens[:, 0].roll(1), over_tokens[:, 1].roll(1)):
        one, two = (-over_tokens[:, 0]).exp(), (-other).exp()
        assert chi_square((one * 8).floor() / 8 + two / 8, 64) < 103.4
