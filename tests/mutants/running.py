"""Which check catches which bug."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice

from rlhf_core import plugins as plugin_loader
from rlhf_core.plugins import Plugins

from . import (
    adapter_bugs,
    estimator_bugs,
    eval_metric_bugs,
    kl_bugs,
    loss_bugs,
    observer_bugs,
    off_policy_bugs,
    preference_bugs,
    rollout_bugs,
    sampler_bugs,
    schedule_bugs,
    score_bugs,
    training_bugs,
    unweighted_bugs,
)
from .mutant import Mutant

MUTANTS: tuple[Mutant, ...] = (
    *estimator_bugs.MUTANTS,
    *loss_bugs.MUTANTS,
    *rollout_bugs.MUTANTS,
    *off_policy_bugs.MUTANTS,
    *training_bugs.MUTANTS,
    *preference_bugs.MUTANTS,
    *score_bugs.MUTANTS,
    *adapter_bugs.MUTANTS,
    *sampler_bugs.MUTANTS,
    *schedule_bugs.MUTANTS,
    *kl_bugs.MUTANTS,
    *eval_metric_bugs.MUTANTS,
    *observer_bugs.MUTANTS,
    *unweighted_bugs.MUTANTS,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What the checks say of one bug."""

    mutant: Mutant
    caught_by: tuple[str, ...]
    """Checks that fail with the bug and pass without it."""
    reason: str = ""
    """What the first of them says."""


def judge(mutant: Mutant, plugins: Plugins, *, all_checks: bool = True) -> Verdict:
    """Run the checks on our component with the bug, and those that fail on it without the bug.

    Args:
        all_checks: go on after the first check that catches the bug.
    """
    catches = mutant.catches(plugins)
    caught = list(catches if all_checks else islice(catches, 1))
    return Verdict(
        mutant=mutant,
        caught_by=tuple(outcome.check for outcome in caught),
        reason=caught[0].reason.partition("\n")[0] if caught else "",
    )


def load() -> Plugins:
    """Return the installed plugins, and no others that the environment names."""
    return plugin_loader.load("")
