"""Which tokens Clip-Cov and KL-Cov treat apart."""

import pytest
import torch

from rlhf_core.contracts import StepColumns
from rlhf_plugin_covariance.components import ClipCovLoss, KlCovLoss
from rlhf_plugin_covariance.config import ClipCovConfig, KlCovConfig
from rlhf_plugin_covariance.selection import (
    drawn_within,
    largest_positive,
    num_selected,
    token_covariances,
)


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_the_covariances_of_three_tokens_by_hand():
    advantages = torch.tensor([[1.0, -1.0], [3.0, 9.0]])
    logprobs = torch.tensor([[-1.0, -3.0], [-2.0, 9.0]])
    mask = torch.tensor([[True, True], [True, False]])

    actual = token_covariances(advantages, logprobs, mask)

    # mean A = 1, mean logp = -2: (0)(1), (-2)(-1), (2)(0)
    torch.testing.assert_close(actual, torch.tensor([[0.0, 2.0], [0.0, 0.0]]))


def test_the_mean_of_the_terms_is_the_covariance(random_step):
    step = random_step()
    mask = step.action_mask

    terms = token_covariances(step.advantages, step.old_logprobs, mask)

    pairs = torch.stack([step.advantages[mask], step.old_logprobs[mask]])
    torch.testing.assert_close(terms[mask].mean(), torch.cov(pairs, correction=0)[0, 1])


def test_a_shift_of_either_changes_no_covariance(random_step):
    step = random_step()
    mask = step.action_mask

    plain = token_covariances(step.advantages, step.old_logprobs, mask)
    shifted = token_covariances(step.advantages + 3.0, step.old_logprobs - 2.0, mask)

    torch.testing.assert_close(shifted, plain)


def test_equal_values_that_are_not_exact_in_binary_have_no_covariance():
    mask = torch.ones(2, 4, dtype=torch.bool)

    terms = token_covariances(torch.full((2, 4), 0.1), torch.randn(2, 4, generator=seeded(0)), mask)

    assert (terms == 0).all()


@pytest.mark.parametrize(
    ("fraction", "tokens", "expected"),
    [(2e-4, 10, 1), (2e-4, 10_000, 2), (0.3, 15, 4), (1.0, 7, 7), (0.5, 0, 0)],
)
def test_how_many_tokens_are_selected(fraction, tokens, expected):
    mask = torch.arange(tokens + 3)[None] < tokens

    assert num_selected(fraction, mask) == expected


def test_tokens_are_drawn_only_between_the_bounds():
    covariances = torch.tensor([[0.5, 1.0, 1.1, 4.9], [5.0, 6.0, 3.0, 2.0]])
    eligible = torch.tensor([[True, True, True, True], [True, True, True, False]])

    chosen = drawn_within(covariances, eligible, low=1.0, high=5.0, count=99, generator=seeded(0))

    expected = torch.tensor([[False, False, True, True], [False, False, True, False]])
    assert torch.equal(chosen, expected)


def test_a_draw_has_the_wanted_size_and_depends_on_the_seed_alone():
    covariances = torch.full((4, 25), 2.0)
    eligible = torch.ones(4, 25, dtype=torch.bool)

    def draw(seed):
        return drawn_within(
            covariances, eligible, low=1.0, high=5.0, count=10, generator=seeded(seed)
        )

    assert draw(1).sum() == 10
    assert torch.equal(draw(1), draw(1))
    assert not torch.equal(draw(1), draw(2))


def test_every_candidate_is_drawn_equally_often():
    """1000 draws of 2 of 8: 250 times each, with a standard deviation of about 14."""
    covariances = torch.full((1, 10), 2.0)
    eligible = torch.arange(10)[None] < 8
    generator = seeded(0)

    counts = sum(
        drawn_within(covariances, eligible, low=1.0, high=5.0, count=2, generator=generator).int()
        for _ in range(1000)
    )

    assert counts[0, 8:].sum() == 0
    assert counts[0, :8].min() >= 190
    assert counts[0, :8].max() <= 310


def test_the_largest_covariances_are_taken_and_only_positive_ones():
    covariances = torch.tensor([[3.0, -1.0, 2.0], [5.0, 2.0, 0.0]])
    eligible = torch.tensor([[True, True, True], [False, True, True]])

    two = largest_positive(covariances, eligible, count=2)
    all_of_them = largest_positive(covariances, eligible, count=6)

    # 5 is not eligible; of the two 2.0 the first is taken.
    assert two.tolist() == [[True, False, True], [False, False, False]]
    assert all_of_them.tolist() == [[True, False, True], [False, True, False]]


def selected_with(loss, advantages, old_logprobs, mask, seed=0):
    step = StepColumns(
        advantages=advantages, action_mask=mask, old_logprobs=old_logprobs, seed=seed
    )
    (column,) = loss.prepare(step).values()
    return column.bool()


def test_clip_cov_draws_with_the_seed_of_the_step():
    advantages, old = torch.randn(2, 20, 30, generator=seeded(0))
    mask = torch.ones(20, 30, dtype=torch.bool)
    loss = ClipCovLoss(ClipCovConfig(fraction=0.02))

    first, again, other = (selected_with(loss, advantages, old, mask, seed) for seed in (1, 1, 2))

    assert first.sum() == 12  # 0.02 * 600, and more than 12 tokens have a covariance in (1, 5)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    covariances = token_covariances(advantages, old, mask)[first]
    assert covariances.min() > 1
    assert covariances.max() < 5


def test_kl_cov_takes_the_tokens_that_a_loop_ranks_first(random_step):
    step = random_step()
    mask = step.action_mask
    advantages, old = step.advantages[mask].tolist(), step.old_logprobs[mask].tolist()
    mean_advantage, mean_old = sum(advantages) / 15, sum(old) / 15
    terms = [
        (advantage - mean_advantage) * (logprob - mean_old)
        for advantage, logprob in zip(advantages, old, strict=True)
    ]
    best = sorted(range(15), key=lambda index: -terms[index])[:3]

    chosen = selected_with(
        KlCovLoss(KlCovConfig(fraction=0.2)), step.advantages, step.old_logprobs, mask
    )

    assert sorted(best) == chosen[mask].nonzero()[:, 0].tolist()


def test_the_order_of_rows_does_not_change_what_kl_cov_takes(random_step):
    step = random_step()
    order = torch.tensor([3, 1, 4, 0, 2])
    loss = KlCovLoss(KlCovConfig(fraction=0.2))

    chosen = selected_with(loss, step.advantages, step.old_logprobs, step.action_mask)
    moved = selected_with(
        loss, step.advantages[order], step.old_logprobs[order], step.action_mask[order]
    )

    assert torch.equal(moved, chosen[order])


def test_the_whole_step_is_ranked_not_each_part_of_it():
    """A row of small covariances has no selected token, though it would have one if it were ranked by itself."""
    advantages = torch.tensor([[2.0, -2.0, 2.0, -2.0], [0.1, -0.1, 0.1, -0.1]])
    old = torch.tensor([[-1.0, -5.0, -1.0, -5.0], [-1.0, -5.0, -1.0, -5.0]])
    mask = torch.ones(2, 4, dtype=torch.bool)
    loss = KlCovLoss(KlCovConfig(fraction=0.25))

    whole = selected_with(loss, advantages, old, mask)
    second = selected_with(loss, advantages[1:], old[1:], mask[1:])

    assert whole.sum(dim=1).tolist() == [2, 0]
    assert second.sum() == 1
