"""Demands of a run: the models to build and the passes to make over each batch, because components need them."""

from __future__ import annotations

from dataclasses import dataclass

from rlhf_config.checks.features import has_entropy_bonus, old_logprobs_from, updates_per_batch
from rlhf_config.resolved import Resolved
from rlhf_core.capabilities import HEARS_TOKENS, NO_ADVANTAGES, PREPARES_STEP
from rlhf_core.contracts.backend import Statistic


@dataclass(frozen=True, slots=True, kw_only=True)
class Demands:
    """Models and passes that a run needs, computed once at start from ``needs`` and options. Nothing else is built."""

    critic: bool
    """True: a component needs ``values``, so there is a critic."""
    final_values: bool
    """True: a component needs the critic's value of the state after a truncated response."""
    reference: bool
    """True: there is a KL, or a component needs ``ref_logprobs``, so there is a reference."""
    teacher_logprobs: bool
    """True: a loss needs the teacher's log-probs of the sampled actions."""
    teacher_top_k: int
    """Number of the teacher's most probable tokens that a loss needs; 0: none."""
    old_statistics: tuple[Statistic, ...]
    """Statistics that the policy computes over each batch before its updates; empty: there is no such pass."""
    rollout_logprobs: bool
    """True: every sample carries the sampler's log-probs; False: samples of a few prompts do, for mismatch metrics."""
    rollout_as_old: bool
    """True: the sampler's log-probs stand in for the old ones."""
    greedy_rewards: bool
    """True: one more episode per prompt is sampled greedily."""
    observations: bool
    """True: the estimator compares turns that started from the same text."""
    prepares_step: bool
    """True: the policy loss looks at the whole optimizer step first."""
    supervised: bool
    """True: a further loss imitates given responses."""
    trains_unjudged: bool
    """True: the loss has a term on rollouts that needs no advantages: a KL, an entropy bonus, or one that says so."""
    learns_unjudged: bool
    """True: there are terms from which the policy learns without rewards; a KL and an entropy bonus are none."""
    updates_per_step: int
    """Optimizer updates per rollout batch."""

    @property
    def teacher(self) -> bool:
        """True: there is a teacher."""
        return self.teacher_logprobs or self.teacher_top_k > 0


def demands_of(resolved: Resolved) -> Demands:
    """Return the demands of a configuration whose options have been checked against each other."""
    run = resolved.run
    chosen = [
        selection
        for path, found in resolved.selections.items()
        if path
        != "critic.adapter"  # what an adapter needs concerns its own role, and these are the policy's
        for selection in found
    ]
    needs = frozenset().union(*(selection.needs for selection in chosen))
    loss = resolved.one("algo.loss.policy").registered.component
    kl_in_loss = run.algo.kl.coef > 0 and run.algo.kl.mode == "loss"
    imitates = any(
        NO_ADVANTAGES in term.registered.component.provides and "supervised_data" not in term.needs
        for term in resolved.selections["algo.terms.use"]
    )
    old_from = old_logprobs_from(run, resolved.selections)
    return Demands(
        critic="values" in needs,
        final_values="final_values" in needs,
        reference=run.algo.kl.coef > 0 or "ref_logprobs" in needs,
        teacher_logprobs="teacher_logprobs" in needs,
        teacher_top_k=run.algo.teacher.top_k if "teacher_top_k" in needs else 0,
        old_statistics=_old_statistics(resolved, needs, recompute=old_from == "recompute"),
        # A correction is called with them, also one without a description of what it needs.
        rollout_logprobs="rollout_logprobs" in needs
        or old_from == "rollout"
        or bool(resolved.selections["algo.correction.kind"])
        or run.algo.loss.off_policy_mask is not None,
        rollout_as_old=old_from == "rollout",
        greedy_rewards="greedy_rewards" in needs,
        observations="observations" in needs,
        prepares_step=PREPARES_STEP in loss.provides,
        supervised="supervised_data" in needs,
        trains_unjudged=kl_in_loss or has_entropy_bonus(run) or imitates,
        learns_unjudged=imitates or "supervised_data" in needs,
        updates_per_step=updates_per_batch(run),
    )


def _old_statistics(
    resolved: Resolved, needs: frozenset[str], *, recompute: bool
) -> tuple[Statistic, ...]:
    kl = resolved.run.algo.kl
    kl_in_reward = kl.coef > 0 and kl.mode == "reward"
    statistics: list[Statistic] = []
    by_entropy = resolved.run.algo.loss.top_entropy < 1.0
    if kl_in_reward or "old_logprobs" in needs or recompute or by_entropy:
        statistics.append("logprobs")
    if "sum_pi_squared" in needs:
        statistics.append("sum_pi_squared")
    if by_entropy or (statistics and resolved.provides("observers.use", HEARS_TOKENS)):
        statistics.append("entropy")
    return tuple(statistics)
