"""Clip-Cov and KL-Cov: which tokens they select, and what becomes of them."""

import math
from dataclasses import replace

import pytest
import torch

from rlhf_core.contracts import LossInputs, StepColumns, metric_values
from rlhf_plugin_covariance.covariance import (
    ClipCovConfig,
    ClipCovLoss,
    KlCovConfig,
    KlCovLoss,
    clip_cov_loss,
    drawn_within,
    kl_cov_loss,
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


CLIP = {"clip_low": 0.2, "clip_high": 0.3}


def test_clip_cov_by_hand():
    ratio = torch.tensor([[1.1, 3.0, 3.0, 0.5, 1.1]], dtype=torch.float64)
    advantages = torch.tensor([[2.0, 1.0, -1.0, -1.0, 1.0]], dtype=torch.float64)
    policy = ratio.log().requires_grad_()
    detached = torch.tensor([[False, False, False, False, True]])

    result = clip_cov_loss(
        policy, torch.zeros_like(ratio), advantages, torch.ones_like(detached), detached, **CLIP
    )
    result.loss.sum().backward()

    # -1.1 * 2; clipped at 1.3; 3 in full; clipped at 0.8; detached
    expected = torch.tensor([[-2.2, -1.3, 3.0, 0.8, 0.0]], dtype=torch.float64)
    torch.testing.assert_close(result.loss.detach(), expected)
    gradient = torch.tensor([[-2.2, 0.0, 3.0, 0.0, 0.0]], dtype=torch.float64)
    torch.testing.assert_close(policy.grad, gradient)
    assert result.clipped_low.tolist() == [[False, False, False, True, False]]
    assert result.clipped_high.tolist() == [[False, True, False, False, False]]


def test_kl_cov_by_hand():
    ratio = torch.tensor([[2.0, 2.0, 0.5, 0.5]], dtype=torch.float64)
    advantages = torch.tensor([[1.0, 1.0, -1.0, -1.0]], dtype=torch.float64)
    policy = ratio.log().requires_grad_()
    penalized = torch.tensor([[False, True, False, True]])

    result = kl_cov_loss(
        policy,
        torch.zeros_like(ratio),
        advantages,
        torch.ones_like(penalized),
        penalized,
        kl_coef=3.0,
    )
    result.loss.sum().backward()

    # -ratio * A, plus 3 * ln 2 where penalized; the ratio is not clipped.
    pull = 3 * math.log(2)
    expected = torch.tensor([[-2.0, -2.0 + pull, 0.5, 0.5 + pull]], dtype=torch.float64)
    torch.testing.assert_close(result.loss.detach(), expected)
    # The penalty pulls back with 3: down where the ratio is above 1, up where it is below.
    gradient = torch.tensor([[-2.0, -2.0 + 3.0, 0.5, 0.5 - 3.0]], dtype=torch.float64)
    torch.testing.assert_close(policy.grad, gradient)


def test_without_selected_tokens_they_are_the_clipped_and_the_plain_loss(random_step):
    step = random_step()
    mask, none = step.action_mask, torch.zeros_like(step.action_mask)
    columns = (step.policy_logprobs, step.old_logprobs, step.advantages, mask, none)
    ratio = (step.policy_logprobs - step.old_logprobs).exp()
    clipped = torch.minimum(ratio * step.advantages, ratio.clamp(0.8, 1.3) * step.advantages)

    torch.testing.assert_close(
        clip_cov_loss(*columns, **CLIP).loss, torch.where(mask, -clipped, 0.0)
    )
    torch.testing.assert_close(
        kl_cov_loss(*columns, kl_coef=1.0).loss,
        torch.where(mask, -ratio * step.advantages, 0.0),
    )


def test_gradients_are_right(random_step):
    step = random_step(seed=1)
    selected = torch.rand(5, 6, generator=torch.Generator().manual_seed(0)) < 0.4
    policy = step.policy_logprobs.clone().requires_grad_()
    rest = (step.old_logprobs, step.advantages, step.action_mask, selected)

    assert torch.autograd.gradcheck(lambda x: clip_cov_loss(x, *rest, **CLIP).loss, policy)
    assert torch.autograd.gradcheck(lambda x: kl_cov_loss(x, *rest, kl_coef=0.7).loss, policy)


def test_the_penalty_still_pulls_where_the_ratio_is_clamped():
    policy = torch.tensor([[60.0]], requires_grad=True)
    one = torch.ones(1, 1, dtype=torch.bool)

    kl_cov_loss(
        policy, torch.zeros(1, 1), torch.ones(1, 1), one, one, kl_coef=2.0
    ).loss.sum().backward()

    torch.testing.assert_close(policy.grad, torch.tensor([[2.0]]))


def test_clip_cov_reports_what_it_clipped_and_detached():
    inputs = LossInputs(
        policy_logprobs=torch.tensor([[0.5, 1.5, 1.0, 1.5, 9.0]]).log(),
        old_logprobs=torch.zeros(1, 5),
        advantages=torch.tensor([[-1.0, 1.0, 1.0, 1.0, 1.0]]),
        action_mask=torch.tensor([[True, True, True, True, False]]),
        prepared={"detached": torch.tensor([[0.0, 0.0, 1.0, 1.0, 1.0]])},
    )

    metrics = ClipCovLoss(ClipCovConfig(**CLIP))(inputs).metrics

    # A detached token is not counted as clipped too, and padding not at all.
    assert metric_values(metrics) == pytest.approx(
        {
            "policy/ratio": 4.5 / 4,
            "clip/fraction_low": 0.25,
            "clip/fraction_high": 0.25,
            "clip/fraction_cov": 0.5,
        }
    )


def test_kl_cov_reports_how_far_the_penalized_tokens_have_moved():
    inputs = LossInputs(
        policy_logprobs=torch.tensor([[0.5, -0.3, 0.1, 9.0]]),
        old_logprobs=torch.zeros(1, 4),
        advantages=torch.ones(1, 4),
        action_mask=torch.tensor([[True, True, True, False]]),
        prepared={"penalized": torch.tensor([[1.0, 1.0, 0.0, 1.0]])},
    )
    ratios = sum(math.exp(x) for x in (0.5, -0.3, 0.1))

    metrics = KlCovLoss(KlCovConfig())(inputs).metrics

    assert metric_values(metrics) == pytest.approx(
        {
            "policy/ratio": ratios / 3,
            "kl_cov/fraction": 2 / 3,
            "kl_cov/abs_log_ratio": 0.4,
        }
    )
    none = replace(inputs, prepared={"penalized": torch.zeros(1, 4)})
    assert "kl_cov/abs_log_ratio" not in metric_values(KlCovLoss(KlCovConfig())(none).metrics)
