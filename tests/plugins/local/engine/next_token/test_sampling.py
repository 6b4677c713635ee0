"""Truncation and the draw, against hand-computed cases and a slow loop over single probabilities."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from rlhf_plugin_local.engine.next_token.sampling import (
    BLOCK,
    DrawKind,
    argmax,
    draw,
    draw_rows,
    exponentials,
    invert,
    race,
    truncate,
    uniforms,
)


def kept_ids(logits: Tensor) -> list[list[int]]:
    return [row.isfinite().nonzero()[:, 0].tolist() for row in logits]


def truncated(logits: Tensor, *, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0) -> Tensor:
    R = len(logits)
    return truncate(
        logits,
        torch.full((R,), top_k),
        torch.full((R,), top_p),
        torch.full((R,), min_p),
    )


def slow_kept(row: list[float], top_k: int, top_p: float, min_p: float) -> set[int]:
    """One row, one token at a time, in Python floats."""
    weights = [math.exp(x - max(row)) for x in row]
    order = sorted(range(len(row)), key=lambda token: (-row[token], token))
    if top_k:
        order = order[:top_k]
    total = math.fsum(weights[token] for token in order)
    kept: set[int] = set()
    reached = 0.0
    for token in order:
        if reached < top_p or top_p >= 1.0:
            kept.add(token)
        reached += weights[token] / total
    return {t for t in kept if weights[t] >= min_p * weights[order[0]]} | {order[0]}


def test_top_p_keeps_the_smallest_set_that_reaches_the_sum():
    logits = torch.tensor([[0.5, 0.25, 0.15, 0.1]]).log()

    # 0.5 + 0.25 = 0.75 < 0.8, so the third is needed; 0.75 >= 0.7 without it.
    assert kept_ids(truncated(logits, top_p=0.8)) == [[0, 1, 2]]
    assert kept_ids(truncated(logits, top_p=0.7)) == [[0, 1]]


def test_top_p_is_a_share_of_what_top_k_kept():
    logits = torch.tensor([[0.4, 0.3, 0.2, 0.1]]).log()

    # Of the two kept, the first has 4/7 = 0.571: enough for 0.55, though 0.4 is not.
    assert kept_ids(truncated(logits, top_k=2, top_p=0.55)) == [[0]]
    assert kept_ids(truncated(logits, top_p=0.55)) == [[0, 1]]


def test_min_p_is_relative_to_the_most_probable_token():
    logits = torch.tensor([[0.5, 0.25, 0.15, 0.1]]).log()

    # The bound is 0.28 * 0.5 = 0.14.
    assert kept_ids(truncated(logits, min_p=0.28)) == [[0, 1, 2]]


def test_neutral_parameters_change_nothing():
    logits = torch.randn(5, 37, generator=torch.Generator().manual_seed(0))

    assert torch.equal(truncated(logits), logits)


def test_of_equally_probable_tokens_the_lower_ids_are_kept():
    assert kept_ids(truncated(torch.zeros(1, 6), top_k=2)) == [[0, 1]]


def test_tiny_top_p_keeps_the_most_probable_token():
    logits = torch.tensor([[0.0, 3.0, 1.0]])

    assert kept_ids(truncated(logits, top_p=1e-9)) == [[1]]


@pytest.mark.parametrize("seed", range(3))
def test_truncation_equals_a_slow_loop_with_different_parameters_in_each_row(seed):
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(60, 23, generator=generator)
    top_k = torch.randint(0, 24, (60,), generator=generator)
    top_p = torch.rand(60, generator=generator).clamp(0.05)
    top_p[::4] = 1.0
    min_p = torch.rand(60, generator=generator) * 0.5
    min_p[::3] = 0.0

    actual = kept_ids(truncate(logits, top_k, top_p, min_p))

    for row, ids in enumerate(actual):
        options = (int(top_k[row]), float(top_p[row]), float(min_p[row]))
        assert set(ids) == slow_kept(logits[row].double().tolist(), *options), (row, options)


def test_a_row_does_not_notice_the_other_rows():
    logits = torch.randn(9, 50, generator=torch.Generator().manual_seed(1))

    together = truncated(logits, top_k=20, top_p=0.7, min_p=0.01)

    alone = torch.cat([truncated(row[None], top_k=20, top_p=0.7, min_p=0.01) for row in logits])
    assert torch.equal(together, alone)


def test_an_inverted_draw_is_a_quantile_of_the_cumulative_distribution():
    logits = torch.tensor([0.5, 0.25, 0.25]).log().repeat(5, 1)
    uniform = torch.tensor([0.0, 0.49, 0.51, 0.74, 0.76], dtype=torch.float64)

    tokens, logprobs = invert(logits, uniform)

    assert tokens.tolist() == [0, 0, 1, 1, 2]
    expected = torch.tensor([0.5, 0.5, 0.25, 0.25, 0.25]).log()
    torch.testing.assert_close(logprobs, expected)


@pytest.mark.parametrize("uniform", [0.0, 5e-324, 1.0 - 2.0**-53, 1.0])
def test_a_token_of_probability_zero_is_never_drawn(uniform):
    kept = [3, 7]
    logits = torch.full((1, 12), -torch.inf)
    logits[0, kept] = torch.tensor([0.3, -0.2])

    tokens, logprobs = invert(logits, torch.tensor([uniform], dtype=torch.float64))

    assert tokens.item() == (3 if uniform < 0.5 else 7)
    assert logprobs.isfinite().all()


def test_inverted_draws_follow_the_distribution():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(1, 16, generator=generator)
    n = 50_000
    uniform = torch.rand(n, generator=generator, dtype=torch.float64)

    tokens, _ = invert(logits.expand(n, -1), uniform)

    expected = n * logits.softmax(-1)[0].double()
    counts = torch.bincount(tokens, minlength=16)
    # 99.9 % quantile of chi-square with 15 degrees of freedom.
    assert float(((counts - expected) ** 2 / expected).sum()) < 37.7


def test_logprob_is_that_of_the_truncated_distribution():
    logits = truncated(torch.tensor([[0.4, 0.3, 0.2, 0.1]]).log(), top_k=2)

    tokens, logprobs = invert(logits, torch.tensor([0.99], dtype=torch.float64))

    assert tokens.item() == 1
    torch.testing.assert_close(logprobs, torch.tensor([3 / 7]).log())


def test_argmax_gives_the_logprob_among_all_tokens():
    tokens, logprobs = argmax(torch.tensor([[0.2, 0.7, 0.1]]).log())

    assert tokens.tolist() == [1]
    torch.testing.assert_close(logprobs, torch.tensor([0.7]).log())


def test_logits_that_are_not_numbers_show_in_the_logprob():
    row = torch.zeros(1, dtype=torch.int64)
    for V in (5, 2 * BLOCK + 1):
        tokens, logprobs = draw(torch.full((1, V), torch.nan), row, row)

        assert logprobs.isnan().all()
        assert 0 <= tokens.item() < V


@pytest.mark.parametrize(
    ("V", "expected"),
    [
        (64, [34, 26, 28, 18, 4, 15, 15, 7, 46, 54, 17, 59]),
        (1000, [503, 390, 455, 343, 75, 217, 201, 104, 683, 871, 357, 952]),
        (BLOCK, [519, 398, 468, 350, 78, 222, 206, 104, 701, 885, 363, 973]),
    ],
)
def test_a_vocabulary_of_one_block_is_drawn_from_by_inversion(V, expected):
    """The tokens are those of the releases that inverted every draw."""
    R = torch.arange(12)
    logits = ((R[:, None] * 101 + torch.arange(V) * 37) % 97).float() / 16

    tokens, logprobs = draw(logits, R * 7919 - 5, R)

    assert tokens.tolist() == expected
    again = invert(logits, uniforms(R * 7919 - 5, R))
    assert torch.equal(torch.stack(again).float(), torch.stack([tokens, logprobs]).float())


def test_the_block_of_the_largest_ratio_wins_and_in_it_the_token():
    # Masses 1024, 2 * 1024 and 2 * 3 = 6; over 1, 4 and 0.01: 1024, 512 and 600. So block 0; there all
    # weights are equal, and token 5 has the smallest number. With 2 for block 0, the third block wins.
    logits = torch.zeros(2, 2 * BLOCK + 3)
    logits[:, BLOCK:] = math.log(2)
    numbers = torch.ones(2, 3 + BLOCK, dtype=torch.float64)
    numbers[:, :3] = torch.tensor([[1.0, 4.0, 0.01], [2.0, 4.0, 0.01]])
    numbers[0, 3 + 5] = 0.5
    numbers[1, 3 + 2] = 0.5

    tokens, logprobs = race(logits, numbers)

    assert tokens.tolist() == [5, 2 * BLOCK + 2]
    torch.testing.assert_close(logprobs.exp(), torch.tensor([1 / 3078, 2 / 3078]))


def test_of_equal_ratios_the_first_wins():
    assert race(torch.zeros(1, 5000), torch.ones(1, 5 + BLOCK).double())[0].item() == 0


def slow_race(row: list[float], numbers: list[float]) -> int:
    """Gumbel-max by blocks, in Python floats."""
    blocks = [row[first : first + BLOCK] for first in range(0, len(row), BLOCK)]
    sums = [math.fsum(map(math.exp, block)) for block in blocks]
    scores = [
        (math.log(mass) if mass else -math.inf) - math.log(number)
        for mass, number in zip(sums, numbers, strict=False)
    ]
    block = scores.index(max(scores))
    scores = [
        logit - math.log(number)
        for logit, number in zip(blocks[block], numbers[len(blocks) :], strict=False)
    ]
    return block * BLOCK + scores.index(max(scores))


@pytest.mark.parametrize("V", [BLOCK + 1, 2 * BLOCK, 3000])
def test_a_race_is_gumbel_max_by_blocks(V):
    generator = torch.Generator().manual_seed(V)
    logits = 3 * torch.randn(40, V, generator=generator)
    logits[::2, : BLOCK + 1 : 3] = -torch.inf
    logits[::5, :BLOCK] = -torch.inf  # a block without a token
    index = torch.arange(40)

    tokens, logprobs = draw(logits, index * 31, index)

    numbers = exponentials(index * 31, index, -(-V // BLOCK) + BLOCK).tolist()
    pairs = zip(logits.double().tolist(), numbers, strict=True)
    assert tokens.tolist() == [slow_race(*pair) for pair in pairs]
    expected = logits.log_softmax(-1).gather(1, tokens[:, None])[:, 0]
    torch.testing.assert_close(logprobs, expected, atol=2e-6, rtol=1e-6)
    alone = [draw(logits[r : r + 1], index[r : r + 1] * 31, index[r : r + 1])[1] for r in range(40)]
    assert torch.equal(torch.cat(alone), logprobs)


@pytest.mark.parametrize("number", [2.0**-53, 53 * math.log(2)])
@pytest.mark.parametrize("kept", [[3000, 3001], [7, 2999], [1024, 1025]])
def test_a_token_of_no_mass_never_wins_a_race(number, kept):
    logits = torch.full((1, 3002), -torch.inf)
    logits[0, kept] = torch.tensor([0.3, -0.2])
    numbers = torch.full((1, 3 + BLOCK), number, dtype=torch.float64)
    for worst in range(3):
        numbers[0, worst] = 53 * math.log(2)

        tokens, logprobs = race(logits, numbers)

        assert tokens.item() in kept
        assert logprobs.isfinite().all()


def bound_of_chi_square(df: int) -> float:
    """The 99.9 % quantile, by Wilson and Hilferty 1931."""
    return float(df * (1 - 2 / (9 * df) + 3.09 * math.sqrt(2 / (9 * df))) ** 3)


def chi_square(tokens: Tensor, probs: Tensor) -> float:
    """Return the statistic over its 99.9 % quantile; tokens that are expected less than 5 times count as one."""
    expected = len(tokens) * probs.double()
    counts = torch.bincount(tokens, minlength=len(probs)).double()
    often = expected >= 5
    cells = [torch.cat([x[often], x[~often].sum()[None]]) for x in (counts, expected)]
    statistic = float(((cells[0] - cells[1]) ** 2 / cells[1].clamp(min=1e-9)).sum())
    return statistic / bound_of_chi_square(int(often.sum()))


@pytest.mark.parametrize("options", [{}, {"top_p": 0.9, "top_k": 1500}, {"min_p": 0.01}])
def test_tokens_of_several_blocks_follow_the_distribution(options):
    logits = 2 * torch.randn(1, 3000, generator=torch.Generator().manual_seed(0))
    logits = truncated(logits, **options)
    seeds = torch.arange(10_000)
    parts = (draw(logits.expand(500, -1), seed, seed % 7)[0] for seed in seeds.split(500))

    tokens = torch.cat(list(parts))

    probs = logits.softmax(-1)[0]
    assert chi_square(tokens, probs) < 1
    # Also what is rare, in groups over the vocabulary: 60 of neighbors, 61 of tokens that lie far apart.
    for group in (torch.arange(3000) // 50, torch.arange(3000) % 61):
        grouped = torch.zeros(61).index_add(0, group, probs)
        assert chi_square(group[tokens], grouped) < 1


def flips(V: int, draws: int, noise: float, at: Callable[[Tensor, Tensor], Tensor]) -> int:
    """Return how many draws change when noise of that size is added to the logits."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(1, V, generator=generator)
    other = logits + noise * torch.randn(1, V, generator=generator)
    changed = 0
    for seeds in torch.arange(draws).split(100):
        tokens = [at(row.expand(len(seeds), -1), seeds) for row in (logits, other)]
        changed += int((tokens[0] != tokens[1]).sum())
    return changed


def test_noise_in_the_logits_changes_draws_as_often_as_probabilities():
    # Inverted draws change 18 times. Expected of a race: some 1e-4 of 1000.
    assert flips(32_768, 1000, 1e-4, lambda logits, seed: draw(logits, seed, seed)[0]) <= 1


@pytest.mark.slow
def test_roundings_of_the_logits_change_next_to_no_draw():
    # Inverted draws change 4 times at a vocabulary of 32 thousand tokens.
    assert flips(32_768, 20_000, 1e-6, lambda logits, seed: draw(logits, seed, seed)[0]) <= 1


def test_rows_of_a_large_vocabulary_are_greedy_tempered_and_truncated():
    V = 152_064
    logits = 3 * torch.randn(5, V, generator=torch.Generator().manual_seed(0))
    logits[0, [5000, 90_000]] = 40.0
    rows = {
        "index": torch.arange(5),
        "min_new": torch.tensor([0, 0, 9, 0, 0]),
        "seed": torch.arange(5),
        "temperature": torch.tensor([0.0, 0.7, 1.0, 1.0, 1.3]),
        "top_k": torch.tensor([0, 0, 0, 20, 0]),
        "top_p": torch.tensor([1.0, 1.0, 1.0, 0.5, 1.0]),
        "min_p": torch.tensor([0.0, 0.0, 0.0, 0.0, 0.1]),
    }
    kind = DrawKind(some_greedy=True, tempered=True, truncated=True, delayed=True)
    is_eos = torch.arange(V) % 2 == 0

    tokens, logprobs = draw_rows(logits, rows, kind, is_eos)

    assert tokens[0] == 5000  # of equally probable ones the first
    assert tokens[2] % 2 == 1
    scaled = logits / torch.tensor([1.0, 0.7, 1.0, 1.0, 1.3])[:, None]
    scaled[2, ::2] = -torch.inf
    scaled[3:] = truncate(scaled[3:], *(rows[name][3:] for name in ("top_k", "top_p", "min_p")))
    expected = scaled.double().log_softmax(-1).gather(1, tokens[:, None])[:, 0].float()
    assert expected.isfinite().all()
    torch.testing.assert_close(logprobs, expected, atol=2e-6, rtol=1e-6)
