"""Capabilities: what components need of a run, instead of lists of names in the core.

A need is a word. Some the loop supplies when asked (a need for ``values`` builds a critic); some the user supplies by
an option (``group>=2``); some another component provides (``several_turns``). All are checked before a model loads.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from .component import Config, Registered
from .errors import CapabilityError

SUPPLIED_BY_THE_LOOP: Mapping[str, str] = {
    "values": "a critic is built and trained",
    "ref_logprobs": "a reference model is built and scores each batch",
    "old_logprobs": "the policy scores each batch before its updates",
    "rollout_logprobs": "the engine returns the log-probs of its samples",
    "entropy": "the trainer computes the entropy at each action",
    "final_values": "the critic values the state after a truncated response",
    "sum_pi_squared": "the policy scores each batch before its updates",
    "greedy_rewards": "one more episode per prompt is sampled greedily and scored",
    "observations": "what the policy read before each turn is indexed",
    "teacher_logprobs": "the teacher scores each batch",
    "teacher_top_k": "the teacher gives its most probable tokens at each action",
}

FIX: Mapping[str, str] = {
    "environment": "choose one with --env",
    "reward": "add one with --reward; what an environment gives by turn has no name",
    "supervised_data": "give the responses to imitate with --supervised.data",
    "several_turns": "choose an executor that plays several turns",
    "is_correction": "set --algo.correction.kind",
    "kl_in_loss": "set --algo.kl.mode loss and --algo.kl.coef",
    "kl_in_reward": "set --algo.kl.mode reward and --algo.kl.coef",
}

_GROUP = re.compile(r"group>=(\d+)")


@dataclass(frozen=True, slots=True)
class Chosen:
    """A selected component and the flag that selected it."""

    flag: str
    registered: Registered[object]
    options: Config | None = None

    @property
    def needs(self) -> frozenset[str]:
        """What the component needs, and what its options do."""
        by_options = self.options.needed_by_options() if self.options else frozenset()
        return self.registered.component.needs | by_options

    @property
    def conflicts(self) -> frozenset[str]:
        """What the component excludes, and what its options do."""
        by_options = self.options.excluded_by_options() if self.options else frozenset()
        return self.registered.component.conflicts | by_options


def needs_of(chosen: Iterable[Chosen]) -> frozenset[str]:
    """Everything that some component needs."""
    return frozenset().union(*(choice.needs for choice in chosen))


def check(chosen: Sequence[Chosen], features: frozenset[str], samples_per_prompt: int) -> None:
    """Refuse a run whose components cannot work together.

    Args:
        features: capabilities that the options bring, such as ``kl_in_reward`` or ``renormalized_sampling``.
        samples_per_prompt: the size of a group.

    Raises:
        CapabilityError: names the component, what it needs or conflicts with, and the option to change.
    """
    provided = features.union(*(choice.registered.component.provides for choice in chosen))
    present = provided | needs_of(chosen) & SUPPLIED_BY_THE_LOOP.keys()
    for choice in chosen:
        component = choice.registered.component
        for need in sorted(choice.needs):
            _check_need(choice, need, present, samples_per_prompt)
        for conflict in sorted(choice.conflicts & present):
            cause = _who_brings(conflict, chosen) or "an option of this run"
            raise CapabilityError(
                f"{choice.flag} {component.name} cannot be combined with {conflict!r}, which comes from {cause}"
            )


def _check_need(choice: Chosen, need: str, present: frozenset[str], samples: int) -> None:
    name = choice.registered.name
    if group := _GROUP.fullmatch(need):
        if samples < int(group[1]):
            raise CapabilityError(
                f"rollout.n_samples_per_prompt is {samples}; {choice.flag} {name} needs at least {group[1]} "
                f"(it compares a prompt's samples). Set --rollout.n_samples_per_prompt {max(4, int(group[1]))}."
            )
        return
    if need not in present:
        fix = FIX.get(need, "no chosen component provides it")
        raise CapabilityError(f"{choice.flag} {name} needs {need!r}: {fix}.")


def _who_brings(capability: str, chosen: Sequence[Chosen]) -> str | None:
    for choice in chosen:
        if capability in choice.registered.component.provides | choice.needs:
            return f"{choice.flag} {choice.registered.name}"
    return None
