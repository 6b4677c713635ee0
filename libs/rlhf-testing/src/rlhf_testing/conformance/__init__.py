"""Conformance checks: the promises of each contract, checked for components of any author.

With pytest, in a plugin's own tests:

    PLUGINS = load_alone("rlhf_plugin_mine")

    @parametrize_checks("rlhf_policy_losses", {"mine": PLUGINS.get("rlhf_policy_losses", "mine")})
    def test_contract(check, subject):
        check(subject)

Without pytest: ``run_checks``, or ``rlhf check mine``. A check gives a component only the inputs that the component
declares to need. docs/conformance.md lists all checks.
"""

from .registry import CHECKED_HOOKS as CHECKED_HOOKS
from .registry import applying as applying
from .registry import checks_of as checks_of
from .registry import has_required_options as has_required_options
from .registry import run_checks as run_checks
from .subject import Check as Check
from .subject import CheckOutcome as CheckOutcome
from .subject import Subject as Subject
from .subject import subject as subject
from .subject import with_required_options as with_required_options
from .with_pytest import parametrize_checks as parametrize_checks
