"""What the contract of a KL estimator promises."""

import pytest

from rlhf_plugin_algorithms import rlhf_kl_estimators
from rlhf_testing.conformance import parametrize_checks

COMPONENTS = {component.name: component for component in rlhf_kl_estimators()}


@parametrize_checks("rlhf_kl_estimators", COMPONENTS)
def test_contract(check, subject):
    check(subject)


@pytest.mark.parametrize(
    ("name", "words"), [("k1", {"unbiased_kl", "no_pull"}), ("k2", set()), ("k3", {"unbiased_kl"})]
)
def test_each_declares_what_its_gradient_and_its_mean_are(name, words):
    assert COMPONENTS[name].provides == words
