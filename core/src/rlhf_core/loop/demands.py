"""What a run's components need, and so which models are built and which passes are made over each batch."""

from __future__ import annotations

from dataclasses import dataclass

from ..capabilities import Chosen, needs_of
from ..config.features import updates_per_batch
from ..config.resolved import Resolved


@dataclass(frozen=True, slots=True, kw_only=True)
class Demands:
    """Computed once at start from ``needs`` and options; nothing is built or computed that is not asked for."""

    critic: bool
    """A component needs ``values``."""
    reference: bool
    """There is a KL, or a component needs ``ref_logprobs``."""
    old_logprobs_pass: bool
    """The policy scores each batch before its updates."""
    rollout_as_old: bool
    """The sampler's log-probs stand in for the old ones."""
    updates_per_step: int
    """Optimizer updates per rollout batch."""


def demands_of(resolved: Resolved) -> Demands:
    """Work out what has to be built and computed. That the options fit together was checked before."""
    run = resolved.run
    chosen = [
        Chosen(selection.slot, selection.registered, selection.options)
        for selections in resolved.selections.values()
        for selection in selections
    ]
    needs = needs_of(chosen)
    kl_in_reward = run.algo.kl.coef > 0 and run.algo.kl.mode == "reward"
    updates = updates_per_batch(run)
    before_updates = kl_in_reward or "old_logprobs" in needs
    mode = run.algo.loss.old_logprobs
    return Demands(
        critic="values" in needs,
        reference=run.algo.kl.coef > 0 or "ref_logprobs" in needs,
        old_logprobs_pass=before_updates or mode == "recompute" or (mode == "auto" and updates > 1),
        rollout_as_old=mode == "rollout",
        updates_per_step=updates,
    )
