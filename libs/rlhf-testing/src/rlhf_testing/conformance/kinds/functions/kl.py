"""Checks of KL estimators (``contracts.KlEstimator``), by enumeration over small vocabularies."""

from __future__ import annotations

import torch
from torch import Tensor

from rlhf_core.capabilities import NO_PULL, UNBIASED_KL

from ...comparing import assert_equal, assert_finite
from ...subject import Subject, checks_in, traits

_REFERENCE = (0.2, 0.3, 0.4, 0.1)
_POLICIES = ((0.5, 0.25, 0.15, 0.1), (0.1, 0.2, 0.3, 0.4), (0.02, 0.38, 0.45, 0.15))
"""Probabilities of four tokens; no log-ratio is above 2.4 nats."""
_STEP = 0.02
"""Change of the reference's logits by which a near policy comes of it."""
_NEAR = 0.05
"""Share by which the mean estimate of a near policy may miss the KL: the first order in ``_STEP``."""
_FAR = (-1e4, -200.0, -30.0, 0.0, 30.0, 200.0, 1e4)
"""Log-ratios in nats; ``exp`` of the farther ones has no number in float32."""


def _log(probabilities: tuple[float, ...]) -> Tensor:
    return torch.tensor(probabilities, dtype=torch.float64).log()


def _mean(subject: Subject, policy: Tensor, reference: Tensor) -> Tensor:
    """Return ``sum_y p(y) f(log p(y) - log q(y))``; samples are drawn from p, so its weights have no gradient."""
    total: Tensor = (policy.exp().detach() * subject.make()(policy - reference)).sum()
    return total


def _exact(policy: Tensor, reference: Tensor) -> Tensor:
    return (policy.exp() * (policy - reference)).sum()


def _slopes(subject: Subject) -> list[tuple[Tensor, Tensor]]:
    """Return, for each policy, the gradients of the mean estimate and of the KL by the policy's logits."""
    found, reference = [], _log(_REFERENCE)
    for probabilities in _POLICIES:
        logits = _log(probabilities).requires_grad_()
        policy = logits.log_softmax(0)
        mean, exact = _mean(subject, policy, reference), _exact(policy, reference)
        (own,) = torch.autograd.grad(mean, logits, retain_graph=True)
        (wanted,) = torch.autograd.grad(exact, logits)
        found.append((own, wanted))
    return found


def _is_unbiased(subject: Subject) -> bool:
    return UNBIASED_KL in subject.provides


def _pulls(subject: Subject) -> bool:
    return NO_PULL not in subject.provides


def check_each_token_by_itself(subject: Subject) -> None:
    """An estimate for each token, of the shape of the log-ratios, that depends on its own token alone, and is the same
    when it is asked for again."""
    log_ratio = torch.linspace(-2.0, 2.0, 12).reshape(3, 4)
    estimator = subject.make()
    whole = estimator(log_ratio)
    assert whole.shape == log_ratio.shape, (
        f"shape {tuple(whole.shape)} for log-ratios {tuple(log_ratio.shape)}"
    )
    alone = torch.stack([estimator(token[None])[0] for token in log_ratio.flatten()])
    assert_equal(whole.flatten(), alone, "estimates beside others")
    assert_equal(estimator(log_ratio), whole, "estimates that are asked for again")


def check_equal_log_probs_give_zero(subject: Subject) -> None:
    """A token that policy and reference find as probable costs nothing."""
    assert_equal(subject.make()(torch.zeros(3)), torch.zeros(3), "estimates of log-ratio 0")


def check_every_log_ratio_has_a_number_and_a_slope(subject: Subject) -> None:
    """Estimates and slopes are finite for every finite log-ratio: one token may not make an update nan."""
    log_ratio = torch.tensor(_FAR, requires_grad=True)
    estimate = subject.make()(log_ratio)
    assert_finite(estimate, f"estimates at the log-ratios {_FAR}")
    (slope,) = torch.autograd.grad(estimate.sum(), log_ratio)
    assert_finite(slope, f"slopes at the log-ratios {_FAR}")


@traits(usual=True)
def check_it_is_the_kl_of_near_policies(subject: Subject) -> None:
    """For a policy close to its reference the mean over samples is KL(policy || reference)."""
    reference = _log(_REFERENCE)
    for direction in ((1.0, 0.0, 0.0, 0.0), (0.5, -1.0, 1.0, 0.0)):
        change = torch.tensor(direction, dtype=torch.float64)
        policy = (reference + _STEP * change).log_softmax(0)
        mean, exact = float(_mean(subject, policy, reference)), float(_exact(policy, reference))
        assert abs(mean - exact) <= _NEAR * exact, (
            f"mean {mean:.6g} for a near policy, expected {exact:.6g}"
        )


@traits(_is_unbiased)
def check_its_mean_is_the_kl(subject: Subject) -> None:
    """The mean over samples is KL(policy || reference): ``unbiased_kl`` is a promise."""
    reference = _log(_REFERENCE)
    for probabilities in _POLICIES:
        policy = _log(probabilities)
        mean, exact = _mean(subject, policy, reference), _exact(policy, reference)
        assert_equal(mean, exact, f"mean over samples of {probabilities}")


@traits(lambda subject: not _is_unbiased(subject))
def check_a_bias_is_no_secret(subject: Subject) -> None:
    """Without ``unbiased_kl`` the mean over samples differs from the KL somewhere: an unbiased one says so."""
    reference = _log(_REFERENCE)
    apart = [
        float((_mean(subject, policy, reference) - _exact(policy, reference)).abs())
        for policy in map(_log, _POLICIES)
    ]
    assert max(apart) > 1e-6, (
        "its mean is the KL of every policy that was tried; declare provides={'unbiased_kl'}"
    )


@traits(_pulls)
def check_as_a_loss_it_pulls_back(subject: Subject) -> None:
    """Descent on the mean estimate lowers the KL. What has no such gradient provides ``no_pull``."""
    for own, wanted in _slopes(subject):
        along = float(own @ wanted / wanted.square().sum())
        assert along > 1e-3, (
            f"the gradient as a loss goes {along:.3g} times along that of the KL, expected more than 0; a KL estimator "
            "for rewards alone says so with provides={'no_pull'}"
        )


@traits(lambda subject: not _pulls(subject))
def check_no_pull_is_no_gradient(subject: Subject) -> None:
    """With ``no_pull`` the gradient of the mean estimate is 0: runs with it in the loss are refused."""
    for own, _ in _slopes(subject):
        assert_equal(own, torch.zeros_like(own), "gradient as a loss")


CHECKS = checks_in(__name__)
