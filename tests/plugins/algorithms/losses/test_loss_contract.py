"""What every loss promises, and what these declare about themselves."""

import pytest
import torch

from rlhf_core.component import Registered
from rlhf_core.contracts import LossInputs, metric_values
from rlhf_plugin_algorithms import rlhf_policy_losses
from rlhf_testing.conformance import parametrize_checks, subject

OFF_POLICY = ("cispo", "dppo", "topr", "decoupled_ppo")
COMPONENTS = {each.name: each for each in rlhf_policy_losses() if each.name in OFF_POLICY}
STOPS = {"check_gradient_is_the_derivative": "no gradient flows through the weight"}


def variant(name: str, **options: object):
    return subject(COMPONENTS[name], **options)


@parametrize_checks(
    "rlhf_policy_losses",
    {
        "cispo": COMPONENTS["cispo"],
        "cispo-bounded": variant("cispo", clip_low=0.1, clip_high=0.1),
        "dppo-tv": COMPONENTS["dppo"],
        "dppo-kl": variant("dppo", divergence="kl", threshold=0.001),
        "dppo-unbounded": variant("dppo", max_ratio=None, threshold=0.02),
        "topr": COMPONENTS["topr"],
    },
    expected_failures=STOPS,
)
def test_contract_of_weighted_log_probs(check, subject):
    check(subject)


@parametrize_checks(
    "rlhf_policy_losses",
    {
        "decoupled_ppo": COMPONENTS["decoupled_ppo"],
        "decoupled_ppo-dropping": variant("decoupled_ppo", max_weight=1.05),
        "decoupled_ppo-truncating": variant("decoupled_ppo", max_weight=1.05, beyond="truncate"),
        "decoupled_ppo-unbounded": variant("decoupled_ppo", max_weight=None),
    },
)
def test_contract_of_decoupled_ppo(check, subject):
    check(subject)


@pytest.mark.parametrize("name", ["topr", "decoupled_ppo"])
def test_a_loss_that_corrects_by_itself_refuses_a_correction(name):
    assert "is_correction" in COMPONENTS[name].conflicts
    assert "rollout_logprobs" in COMPONENTS[name].needs


@pytest.mark.parametrize("name", COMPONENTS)
def test_with_all_policies_equal_the_gradient_is_that_of_reinforce(name, step):
    given = step(1)
    policy = given.old_logprobs.clone().requires_grad_()
    loss = Registered(COMPONENTS[name], "tested").build()

    result = loss(
        LossInputs(
            policy_logprobs=policy,
            old_logprobs=given.old_logprobs,
            rollout_logprobs=given.old_logprobs,
            advantages=given.advantages,
            action_mask=given.action_mask,
        )
    )
    result.loss.sum().backward()

    torch.testing.assert_close(policy.grad, -given.advantages)


@pytest.mark.parametrize("name", COMPONENTS)
def test_nan_at_padding_has_no_effect(name, step):
    loss = Registered(COMPONENTS[name], "tested").build()
    outcomes = []
    for padding in (0.0, float("nan")):
        given = step(2, padding=padding)
        given.policy_logprobs.requires_grad_()
        result = loss(given)
        result.loss.sum().backward()
        outcomes.append((result.loss, given.policy_logprobs.grad, metric_values(result.metrics)))

    (clean, clean_grad, clean_metrics), (dirty, dirty_grad, dirty_metrics) = outcomes
    torch.testing.assert_close(dirty, clean, rtol=0, atol=0)
    torch.testing.assert_close(dirty_grad, clean_grad, rtol=0, atol=0)
    assert dirty_metrics == clean_metrics
