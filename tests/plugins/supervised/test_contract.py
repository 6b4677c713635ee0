"""What every loss promises, and what these declare about themselves."""

import subprocess
import sys

import pytest
from pydantic import ValidationError

from rlhf_plugin_supervised import rlhf_policy_losses
from rlhf_plugin_supervised.distill import DistillConfig
from rlhf_testing.conformance import parametrize_checks, subject

COMPONENTS = {component.name: component for component in rlhf_policy_losses()}


@parametrize_checks(
    "rlhf_policy_losses",
    {"distill": COMPONENTS["distill"]},
    expected_failures={
        "check_gradient_is_the_derivative": "the value is an estimate, the gradient that of the KL"
    },
)
def test_contract_of_sampled_distillation(check, subject):
    check(subject)


@parametrize_checks(
    "rlhf_policy_losses",
    {
        "distill-reverse": subject(COMPONENTS["distill"], divergence="top_k"),
        "distill-forward": subject(COMPONENTS["distill"], divergence="top_k", direction="forward"),
        "distill-jsd": subject(
            COMPONENTS["distill"], divergence="top_k", direction="jsd", teacher_share=0.3
        ),
        "sft": COMPONENTS["sft"],
    },
)
def test_contract(check, subject):
    check(subject)


@parametrize_checks(
    "rlhf_policy_losses",
    {"sft-dft": subject(COMPONENTS["sft"], loss="dft")},
    expected_failures={
        "check_gradient_is_the_derivative": "no gradient flows through the weight, which is the token's probability"
    },
)
def test_contract_of_dynamic_fine_tuning(check, subject):
    check(subject)


def test_distillation_needs_what_its_divergence_looks_at():
    assert COMPONENTS["distill"].needs == frozenset()
    assert DistillConfig().needed_by_options() == {"teacher_logprobs"}
    assert DistillConfig(divergence="top_k").needed_by_options() == {"teacher_top_k"}


def test_sft_needs_responses_to_imitate():
    assert COMPONENTS["sft"].needs == {"supervised_data"}


def test_a_forward_kl_of_the_policys_samples_is_refused():
    with pytest.raises(ValidationError, match="Set divergence top_k, or direction reverse"):
        DistillConfig(direction="forward")


def test_importing_the_package_imports_nothing_heavy():
    code = (
        "import sys, rlhf_plugin_supervised\n"
        "heavy = {'torch', 'transformers', 'jaxtyping'} & set(sys.modules)\n"
        "sys.exit(f'imported {sorted(heavy)}' if heavy else 0)"
    )

    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )

    assert result.returncode == 0, result.stderr
