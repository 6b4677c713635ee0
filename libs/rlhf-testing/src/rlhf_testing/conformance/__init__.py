"""Conformance checks: the promises of each contract, checked for components of any author.

With pytest, in a plugin's own tests:

    PLUGINS = load_alone("rlhf_plugin_mine")

    @parametrize_checks("rlhf_policy_losses", {"mine": PLUGINS.get("rlhf_policy_losses", "mine")})
    def test_contract(check, subject):
        check(subject)

Without pytest: ``run_checks``, or ``rlhf check mine``. A check gives a component only the inputs that the component
declares to need. docs/conformance.md lists all checks.
"""

from .registry import CHECKED_HOOKS, applying, checks_of, has_required_options, run_checks
from .subject import Check, CheckOutcome, Subject, subject
from .with_pytest import parametrize_checks

__all__ = [
    "CHECKED_HOOKS",
    "Check",
    "CheckOutcome",
    "Subject",
    "applying",
    "checks_of",
    "has_required_options",
    "parametrize_checks",
    "run_checks",
    "subject",
]
