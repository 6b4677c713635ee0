"""The answers that the kit gives to preference losses, and what it says of a loss that is right, and of one that is not
honest."""

import pytest
import torch
from pydantic import Field

from rlhf_core import Component, Config
from rlhf_core.contracts import PreferenceResult
from rlhf_testing.conformance import applying, run_checks, subject
from rlhf_testing.conformance.preference_inputs import (
    at_the_start,
    preference_case,
    preference_inputs,
    tensors_by_name,
)

HOOK = "rlhf_preference_losses"
NEEDS = frozenset({"ref_logprobs"})


class Scale(Config):
    beta: float = Field(1.0, description="reward per nat")


class Exponential:
    """``exp`` of the rejected reward minus the chosen one, kept from overflow."""

    def __init__(self, config):
        self.beta = config.beta

    def __call__(self, inputs):
        chosen, rejected = (self.beta * each.log_ratio for each in (inputs.chosen, inputs.rejected))
        return PreferenceResult(
            loss=(rejected - chosen).clamp(max=20.0).exp(),
            chosen_rewards=chosen.detach(),
            rejected_rewards=rejected.detach(),
        )


def component(**changes):
    described = {"name": "mine", "factory": Exponential, "config": Scale, "needs": NEEDS}
    return Component(**{**described, **changes})


def test_a_right_loss_passes_and_a_need_that_is_not_declared_is_not_given():
    assert [each.check for each in run_checks(HOOK, component()) if each.failed] == []

    undeclared = run_checks(HOOK, component(needs=frozenset()))

    assert all(each.failed for each in undeclared)
    assert {each.error for each in undeclared} == {"PluginError"}


def test_checks_of_beta_and_of_the_reference_apply_where_there_is_one():
    of_both = {check.name for check in applying(HOOK, subject(component()))}
    of_neither = {
        check.name for check in applying(HOOK, subject(component(config=Config, needs=frozenset())))
    }

    assert of_both - of_neither == {
        "check_only_log_ratios_count",
        "check_rewards_scale_with_beta",
        "check_loss_is_of_the_rewards",
    }


@pytest.mark.parametrize(("paired", "num_rejected"), [(True, 5), (False, 3)])
def test_answers_are_log_probs_that_differ_by_no_more_than_the_drift(paired, num_rejected):
    case = preference_case(paired=paired, drift=2.0)

    assert (len(case.chosen.policy), len(case.rejected.policy)) == (5, num_rejected)
    for answers in (case.chosen, case.rejected):
        assert (answers.policy < 0).all()
        assert ((answers.policy - answers.reference).abs() <= 2.0).all()
        assert answers.num_tokens.min() >= 1
        assert len(answers.num_tokens.unique()) > 1


def test_at_the_start_policy_and_reference_agree():
    start = at_the_start(preference_case(paired=True))

    assert torch.equal(start.chosen.policy, start.chosen.reference)
    assert torch.equal(start.rejected.policy, start.rejected.reference)
    assert start.mismatched_kl == 0.0


def test_a_loss_gets_the_columns_that_it_needs_and_no_others():
    case = preference_case(paired=False)

    bare = tensors_by_name(preference_inputs(case, frozenset()))
    full = tensors_by_name(preference_inputs(case, NEEDS | {"mismatched_kl"}))

    assert full.keys() - bare.keys() == {"chosen.reference", "rejected.reference", "mismatched_kl"}


def test_parts_hold_the_numbers_of_the_whole():
    case = preference_case(paired=False)
    whole = tensors_by_name(preference_inputs(case, NEEDS))
    part = tensors_by_name(preference_inputs(case.rows([3, 1], [2]), NEEDS))

    for name, column in part.items():
        assert torch.equal(column, whole[name][[3, 1] if name.startswith("chosen") else [2]])
