"""Truncation and the draw, against hand-computed cases and a slow loop over single probabilities."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from rlhf_plugin_local.engine.sampling import argmax, draw, truncate


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


def test_draw_inverts_the_cumulative_distribution():
    logits = torch.tensor([0.5, 0.25, 0.25]).log().repeat(5, 1)
    uniform = torch.tensor([0.0, 0.49, 0.51, 0.74, 0.76], dtype=torch.float64)

    tokens, logprobs = draw(logits, uniform)

    assert tokens.tolist() == [0, 0, 1, 1, 2]
    expected = torch.tensor([0.5, 0.5, 0.25, 0.25, 0.25]).log()
    torch.testing.assert_close(logprobs, expected)


@pytest.mark.parametrize("uniform", [0.0, 5e-324, 1.0 - 2.0**-53, 1.0])
def test_a_token_of_probability_zero_is_never_drawn(uniform):
    kept = [3, 7]
    logits = torch.full((1, 12), -torch.inf)
    logits[0, kept] = torch.tensor([0.3, -0.2])

    tokens, logprobs = draw(logits, torch.tensor([uniform], dtype=torch.float64))

    assert tokens.item() == (3 if uniform < 0.5 else 7)
    assert logprobs.isfinite().all()


def test_drawn_tokens_follow_the_distribution():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(1, 16, generator=generator)
    n = 50_000
    uniform = torch.rand(n, generator=generator, dtype=torch.float64)

    tokens, _ = draw(logits.expand(n, -1), uniform)

    expected = n * logits.softmax(-1)[0].double()
    counts = torch.bincount(tokens, minlength=16)
    # 99.9 % quantile of chi-square with 15 degrees of freedom.
    assert float(((counts - expected) ** 2 / expected).sum()) < 37.7


def test_logprob_is_that_of_the_truncated_distribution():
    logits = truncated(torch.tensor([[0.4, 0.3, 0.2, 0.1]]).log(), top_k=2)

    tokens, logprobs = draw(logits, torch.tensor([0.99], dtype=torch.float64))

    assert tokens.item() == 1
    torch.testing.assert_close(logprobs, torch.tensor([3 / 7]).log())


def test_argmax_gives_the_logprob_among_all_tokens():
    tokens, logprobs = argmax(torch.tensor([[0.2, 0.7, 0.1]]).log())

    assert tokens.tolist() == [1]
    torch.testing.assert_close(logprobs, torch.tensor([0.7]).log())


def test_logits_that_are_not_numbers_show_in_the_logprob():
    _, logprobs = draw(torch.full((1, 5), torch.nan), torch.tensor([0.5], dtype=torch.float64))

    assert logprobs.isnan().all()
