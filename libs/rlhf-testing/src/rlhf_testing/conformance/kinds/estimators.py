"""Checks of advantage estimators (``contracts.AdvantageEstimator``)."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import torch

from rlhf_core.contracts.advantage import Advantages, RewardBatch

from ..comparing import (
    assert_affine,
    assert_equal,
    assert_finite,
    assert_metrics,
    assert_untouched,
    copies,
)
from ..reward_batches import Row, binary_rows, mixed_rows, permuted, reward_batch, tensors_of
from ..subject import Subject, checks_in, of_type, traits

EXTREMES = ((1e6, -1e6, 0.0), (0.0, 0.0, 0.0), (1e-30, 0.0, 1.0), (7.0, 7.0, 7.0))
"""Rewards of three samples of a prompt."""

CANCELING = (
    ((1.0, -1.0, -1.0, 1.0), (0, 0, 1, 1)),
    ((1.0, -1.0 + 1e-6, 1.0, -1.0 + 1e-6), (0, 0, 1, 1)),
    ((1.0, -0.5, -0.5, 1e-6), (0, 0, 0, 1)),
    ((1.0, -1.0, 0.5, -0.5), (0, 0, 0, 0)),
)
"""Rewards of four rows of a prompt, and the episodes that they are of."""


def _mixed(subject: Subject) -> RewardBatch:
    return reward_batch(mixed_rows(), subject.needs, kl=_kl(subject))


def _kl(subject: Subject) -> float | None:
    """A KL penalty, unless the component conflicts with one."""
    return None if "kl_in_reward" in subject.conflicts else 0.05


def _estimate(subject: Subject, batch: RewardBatch) -> Advantages:
    return of_type(subject.make()(batch), Advantages)


def _whitens_beside_a_critic(subject: Subject) -> bool:
    return _whitens(subject) and "values" in subject.needs


def _compares_a_group(subject: Subject) -> bool:
    return any(need.startswith("group>=") for need in subject.needs)


def _ignores_observations(subject: Subject) -> bool:
    return "observations" not in subject.needs


def _takes_kl_in_reward(subject: Subject) -> bool:
    return "kl_in_reward" not in subject.conflicts


def _credits_tokens(subject: Subject) -> bool:
    return "credits_tokens" in subject.provides


def _whitens(subject: Subject) -> bool:
    return subject.origin is not None and getattr(subject.config, "whiten", None) == "full"


def check_shapes_and_metrics(subject: Subject) -> None:
    """One finite advantage per action token, in the type of the rewards; metrics that merge."""
    batch = _mixed(subject)
    result = _estimate(subject, batch)
    shape, dtype = batch.action_mask.shape, batch.rewards.dtype
    assert result.advantages.shape == shape, (
        f"advantages have shape {tuple(result.advantages.shape)}, expected {tuple(shape)}"
    )
    assert result.advantages.dtype == dtype, f"{result.advantages.dtype}, expected {dtype}"
    assert_finite(result.advantages, "advantages")
    assert_metrics(result.metrics, "metrics")


def check_returns_come_with_values(subject: Subject) -> None:
    """Components that need ``values`` return the critic's targets; others return none."""
    batch = _mixed(subject)
    returns = _estimate(subject, batch).returns
    if "values" not in subject.needs:
        assert returns is None, "returns without a need for values: no critic could learn them"
        return
    assert returns is not None, "the component needs values but returned no returns"
    assert returns.shape == batch.action_mask.shape, f"returns have shape {tuple(returns.shape)}"
    assert_finite(returns, "returns")


@traits(_whitens_beside_a_critic)
def check_returns_are_not_whitened(subject: Subject) -> None:
    """Whitening is of advantages alone: the critic learns rewards, whose level and scale it has to know."""
    batch = _mixed(subject)
    expected = _estimate(subject.with_options(whiten="none"), batch).returns
    actual = _estimate(subject, batch).returns
    assert actual is not None, "the component needs values but returned no returns"
    assert expected is not None, "the component needs values but returned no returns"
    mask = batch.action_mask
    assert_equal(actual[mask], expected[mask], "returns with and without whitening")


def check_zero_at_padding(subject: Subject) -> None:
    """Advantages are 0 at padding."""
    batch = reward_batch(mixed_rows(), subject.needs, extra_columns=3)
    at_padding = _estimate(subject, batch).advantages[~batch.action_mask]
    assert not at_padding.any(), f"{float(at_padding.abs().max()):.4g} at padding, expected 0"


def check_padding_has_no_effect(subject: Subject) -> None:
    """Neither the amount of padding nor what stands there, nan included, changes an advantage or a return."""
    plain = _mixed(subject)
    dirty = reward_batch(
        mixed_rows(), subject.needs, kl=_kl(subject), padding=float("nan"), extra_columns=5
    )
    expected, actual = _estimate(subject, plain), _estimate(subject, dirty)
    width = plain.action_mask.shape[1]
    assert_equal(actual.advantages[:, :width], expected.advantages, "advantages with nan padding")
    assert not actual.advantages[:, width:].any(), "something at padding with nan there"
    if expected.returns is not None:
        assert actual.returns is not None
        mask = plain.action_mask
        first, second = actual.returns[:, :width], expected.returns
        assert_equal(first[mask], second[mask], "returns with nan padding")


@traits(_compares_a_group)
def check_equal_rewards_teach_nothing(subject: Subject) -> None:
    """A prompt whose samples all earned the same gives about 0, also for rewards that are not exact in binary.

    In float32 eight rewards of 0.1 have a standard deviation near 1e-8 when it is computed carelessly; a tiny eps
    blows that up to advantages of the order of 1.
    """
    for value, size in ((0.1, 8), (0.3, 7), (0.9, 16), (1.0, 4), (0.0, 3)):
        rows = [
            Row(key=key, turns=(1 + key % 3,), score=value, style=value, greedy=value)
            for key in range(size)
        ]
        advantages = _estimate(subject, reward_batch(rows, subject.needs)).advantages
        worst = float(advantages.abs().max())
        assert worst <= 1e-2, f"{size} rewards of {value} give an advantage of {worst:.4g}"


def check_finite_on_extremes(subject: Subject) -> None:
    """Huge and tiny rewards, constant ones, and answers of one token give finite advantages in float32."""
    for scores in EXTREMES:
        rows = [
            Row(key=key, turns=(1,), score=score, group=0, greedy=scores[0])
            for key, score in enumerate(scores)
        ]
        batch = reward_batch(rows, subject.needs, kl=_kl(subject), scale=50.0)
        result = _estimate(subject, batch)
        assert_finite(result.advantages, f"advantages of rewards {scores}")
        if result.returns is not None:
            assert_finite(result.returns, f"returns of rewards {scores}")


def check_inputs_stay_as_they_are(subject: Subject) -> None:
    """The batch is not changed in place: other components read it afterwards."""
    batch = _mixed(subject)
    before = copies(tensors_of(batch))
    _estimate(subject, batch)
    assert_untouched(before, tensors_of(batch))


def check_no_gradient(subject: Subject) -> None:
    """Advantages and returns carry no gradient."""
    result = _estimate(subject, _mixed(subject))
    assert not result.advantages.requires_grad, "advantages carry a gradient"
    assert result.returns is None or not result.returns.requires_grad, "returns carry a gradient"


def check_same_input_same_output(subject: Subject) -> None:
    """Two instances agree to the bit, as does one that is asked again: no checkpoint keeps what it remembers. The
    global random state is left alone."""
    before = torch.random.get_rng_state()
    first, second = (_estimate(subject, _mixed(subject)).advantages for _ in range(2))
    assert torch.equal(first, second), "the same batch gives other advantages the second time"
    estimator = subject.make()
    first, second = (estimator(_mixed(subject)).advantages for _ in range(2))
    assert torch.equal(first, second), (
        "an instance that is asked again gives other advantages; a reward shaper may remember earlier batches"
    )
    assert torch.equal(before, torch.random.get_rng_state()), "it drew global random numbers"


def check_row_order_does_not_matter(subject: Subject) -> None:
    """Advantages move with their rows. A baseline by reshape, which relies on adjacent groups, fails here."""
    batch = _mixed(subject)
    order = torch.tensor([7, 2, 9, 0, 4, 6, 1, 8, 3, 5])
    expected = _estimate(subject, batch).advantages[order]
    actual = _estimate(subject, permuted(batch, order)).advantages
    assert_equal(actual, expected, "advantages of permuted rows")


def check_group_labels_do_not_matter(subject: Subject) -> None:
    """The numbers that name prompts and episodes change no advantage."""
    batch = _mixed(subject)
    renamed = replace(
        batch, group=batch.group.max() - batch.group, episode=batch.episode.max() - batch.episode
    )
    expected = _estimate(subject, batch).advantages
    assert_equal(_estimate(subject, renamed).advantages, expected, "advantages of renamed groups")


@traits(usual=True)
def check_other_prompts_only_shift_and_scale(subject: Subject) -> None:
    """Other rows of the batch change a prompt's advantages by at most one shift and one scale: whitening.

    Most formulas have no other interaction between prompts; a baseline that mixes them or a separate whitening of each
    is one. A formula that scales each prompt by its place among the others (BNPO, arXiv:2506.02864) has one on purpose.
    """
    rows = [row for row in mixed_rows() if row.group < 2]
    more = mixed_rows()
    alone = reward_batch(rows, subject.needs, kl=_kl(subject))
    together = reward_batch(more, subject.needs, kl=_kl(subject))
    place = [more.index(row) for row in rows]
    base = _estimate(subject, alone).advantages[alone.action_mask]
    all_of_them = _estimate(subject, together).advantages[place][:, : alone.action_mask.shape[1]]
    assert_affine(all_of_them[alone.action_mask], base, "advantages beside other prompts")


@traits(_ignores_observations, usual=True)
def check_rows_of_an_episode_count_once(subject: Subject) -> None:
    """Training sequences of one episode that are alike count as one, up to a shift and a scale: whitening.

    Three rows are in the batch again, in their own episodes. A baseline over rows would move towards them.
    """
    rows = mixed_rows()
    repeated = reward_batch([*rows, *rows[:2], rows[9]], subject.needs, kl=_kl(subject))
    base, mask = _estimate(subject, _mixed(subject)).advantages, _mixed(subject).action_mask
    actual = _estimate(subject, repeated).advantages
    assert_affine(actual[: len(rows)][mask], base[mask], "advantages beside copies of some rows")
    copies_of = [0, 1, 9]
    assert_equal(actual[len(rows) :], actual[copies_of], "advantages of the copies")


def check_rows_that_cancel_stay_bounded(subject: Subject) -> None:
    """Rewards that cancel within their episodes give no huge advantages: whatever divides a row saw that row too.

    Four rows with rewards in [-1, 1]; all of the group's episodes have means of (nearly) 0. A deviation over those
    means, or a division by their size, would blow a row's own distance up to the order of 1 / eps. Every formula of
    the field stays below the square of the number of rows.
    """
    for scores, episodes in CANCELING:
        rows = [
            Row(key=key, turns=(2,), score=score, style=score, episode=episode)
            for key, (score, episode) in enumerate(zip(scores, episodes, strict=True))
        ]
        advantages = _estimate(subject, reward_batch(rows, subject.needs)).advantages
        worst, bound = float(advantages.abs().max()), len(rows) ** 2
        assert worst <= bound, (
            f"rewards {scores} of episodes {episodes} give an advantage of {worst:.4g}; "
            f"expected at most {bound}"
        )


@traits(_ignores_observations, usual=True)
def check_empty_turns_do_not_matter(subject: Subject) -> None:
    """Cutting an answer into turns that earn nothing of their own changes nothing.

    Environment text has no columns, so it takes no time: discounting over it would show here.
    """
    whole = [
        Row(key=key, turns=(4,), score=float(key % 2), group=key // 4, greedy=0.5)
        for key in range(8)
    ]
    cut = [replace(row, turns=(1, 2, 1) if row.key % 3 else (2, 2)) for row in whole]
    expected = _estimate(subject, reward_batch(whole, subject.needs)).advantages
    actual = _estimate(subject, reward_batch(cut, subject.needs)).advantages
    assert_equal(actual, expected, "advantages of the same answers in several turns")


def check_double_precision(subject: Subject) -> None:
    """float64 comes back as float64, with the numbers of float32."""
    rows, kl = mixed_rows(), _kl(subject)
    exact = _estimate(subject, reward_batch(rows, subject.needs, kl=kl, dtype=torch.float64))
    assert exact.advantages.dtype == torch.float64, f"{exact.advantages.dtype}, expected float64"
    single = _estimate(subject, reward_batch(rows, subject.needs, kl=kl)).advantages
    assert_equal(single, exact.advantages, "float32 against float64", atol=1e-3, rtol=1e-3)


@traits(_takes_kl_in_reward)
def check_penalty_falls_on_its_token(subject: Subject) -> None:
    """A KL penalty lowers the advantage of its own token against the next one, which came after it."""
    plain = reward_batch(binary_rows(), subject.needs)
    row, token = 3, 1  # of an answer of four tokens
    penalty = torch.zeros_like(plain.token_rewards)
    penalty[row, token] = -2.0
    fined = replace(plain, token_rewards=plain.token_rewards + penalty, kl_penalty=penalty)
    before = _estimate(subject, replace(plain, kl_penalty=torch.zeros_like(penalty))).advantages
    change = _estimate(subject, fined).advantages - before
    step = float(change[row, token] - change[row, token + 1])
    assert step < -1e-3, f"a penalty moves its token by {step:.4g} against the next; expected < 0"


@traits(_credits_tokens)
def check_rewards_credit_their_token(subject: Subject) -> None:
    """A reward at a token counts for it against the next one, which came after it: ``credits_tokens`` is a promise."""
    plain = reward_batch(binary_rows(), subject.needs)
    row, token, last = 3, 1, 3  # of an answer of four tokens
    moved = plain.token_rewards.clone()
    moved[row, token] += 2.0
    moved[row, last] -= 2.0
    before = _estimate(subject, plain).advantages
    change = _estimate(subject, replace(plain, token_rewards=moved)).advantages - before
    step = float(change[row, token] - change[row, token + 1])
    assert step > 1e-3, f"a reward moves its token by {step:.4g} against the next; expected > 0"


@traits(_compares_a_group, usual=True)
def check_shifted_rewards_change_nothing(subject: Subject) -> None:
    """A baseline of the group: adding a constant to all rewards of a prompt changes no advantage."""
    rows = binary_rows()
    shifted = [
        replace(row, score=row.score + 3.0 * (row.group + 1), greedy=row.greedy + 3 + 3 * row.group)
        for row in rows
    ]
    expected = _estimate(subject, reward_batch(rows, subject.needs)).advantages
    actual = _estimate(subject, reward_batch(shifted, subject.needs)).advantages
    assert_equal(actual, expected, "advantages of shifted rewards", atol=1e-4)


@traits(usual=True)
def check_better_samples_get_more(subject: Subject) -> None:
    """Within a prompt, a right answer's advantage is above a wrong one's."""
    rows = [replace(row, turns=(2,)) for row in binary_rows()]
    advantages = _estimate(subject, reward_batch(rows, subject.needs)).advantages[:, -1]
    for group in (0, 1):
        right = [i for i, row in enumerate(rows) if row.group == group and row.score == 1.0]
        wrong = [i for i, row in enumerate(rows) if row.group == group and row.score == 0.0]
        low, high = float(advantages[right].min()), float(advantages[wrong].max())
        assert low > high, f"right answers get {low:.4g}, wrong ones up to {high:.4g}"


@traits(_compares_a_group, usual=True)
def check_more_reward_is_more_advantage(subject: Subject) -> None:
    """Within a prompt, advantages rise with rewards, also far from 0: nothing is cut after the baseline.

    Rewards of 10 and 9 are both far above a mean of 5; advantages that are clipped to [-1, 1] cannot tell them apart.
    """
    scores = (10.0, 9.0, 1.0, 0.0)
    rows = [
        Row(key=key, turns=(2,), score=score, style=score, greedy=5.0)
        for key, score in enumerate(scores)
    ]
    found = _estimate(subject, reward_batch(rows, subject.needs)).advantages[:, -1].tolist()
    falling = all(first > second + 1e-4 for first, second in pairwise(found))
    assert falling, f"rewards {scores} give {[round(value, 4) for value in found]}"


@traits(_whitens)
def check_whitening_is_over_all_action_tokens(subject: Subject) -> None:
    """``whiten = "full"`` gives mean 0 and variance 1 over the action tokens of the whole batch, by one shift and one
    scale of what ``whiten = "none"`` gives."""
    batch = reward_batch(mixed_rows(), subject.needs, extra_columns=4)
    mask = batch.action_mask
    advantages = _estimate(subject, batch).advantages[mask].double()
    mean, variance = float(advantages.mean()), float(advantages.var(correction=0))
    assert abs(mean) < 1e-4, f"the mean over the action tokens is {mean:.4g}, expected 0"
    assert abs(variance - 1) < 1e-3, f"the variance is {variance:.5g}, expected 1 (population)"
    plain = _estimate(subject.with_options(whiten="none"), batch).advantages[mask]
    assert_affine(advantages, plain, "whitened against plain advantages")


CHECKS = checks_in(__name__)
