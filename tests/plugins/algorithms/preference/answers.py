"""Answers for the tests of preference losses."""

import torch

from rlhf_core.contracts import AnswerLogprobs, MatchedPairs, PreferenceInputs

ROWS = 6


def answers(policy, reference=None, num_tokens=None):
    """Answers with the given log-probs; the policy's have a gradient. Without a number of tokens it is 4 of each."""
    policy = torch.tensor(policy, dtype=torch.float64, requires_grad=True)
    return AnswerLogprobs(
        policy=policy,
        reference=None if reference is None else torch.tensor(reference, dtype=torch.float64),
        num_tokens=torch.tensor([4] * len(policy) if num_tokens is None else num_tokens),
    )


def openrlhf_pairs():
    """The pairs whose losses under OpenRLHF 0.11.2 were computed with its own functions."""
    return PreferenceInputs(
        chosen=answers([-10.0, -12.0], [-10.5, -12.5]),
        rejected=answers([-11.0, -14.0], [-10.5, -13.0]),
    )


def update_of(chosen, rejected):
    """The pairs of a whole update, with what is matched with each."""
    matched = MatchedPairs.of(chosen, rejected)
    return PreferenceInputs(chosen=chosen, rejected=rejected, matched=matched)


def log_ratios(seed=0):
    """Random log-ratios of chosen and rejected answers, up to some tens of nats, with a gradient."""
    generator = torch.Generator().manual_seed(seed)
    drawn = 10 * torch.randn(2, ROWS, generator=generator, dtype=torch.float64)
    return tuple(column.clone().requires_grad_() for column in drawn)


def mean_logprobs(seed=0):
    """Random mean log-probs of chosen and rejected answers, from nearly certain to very unlikely, with a gradient."""
    generator = torch.Generator().manual_seed(seed)
    drawn = -(torch.randn(2, ROWS, generator=generator, dtype=torch.float64).exp() ** 2)
    return tuple(column.clone().requires_grad_() for column in drawn)


def gradients_at_the_start(loss_of, num_tokens=None):
    """Gradients of a loss by the log-probs of a chosen and of a rejected answer, where policy and reference agree."""
    pair = update_of(answers([-4.0], [-4.0], num_tokens), answers([-4.0], [-4.0], num_tokens))
    loss_of(pair).loss.sum().backward()
    return pair.chosen.policy.grad.item(), pair.rejected.policy.grad.item()
