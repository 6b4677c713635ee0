"""Panel of all rewards of a run, which score at the same time; scores are added with the rewards' weights."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rlhf_config.resolved import Selection
from rlhf_core.contracts.reward import RewardRequest
from rlhf_core.errors import RewardError
from rlhf_core.problem import Problem, ProblemKind

from ..concurrency import all_at_once
from .host import RewardHost
from .outcome import RewardOutcome

_CODES = {
    ProblemKind.RAISED: "reward/raised",
    ProblemKind.RETURNED: "reward/wrong-answer",
    ProblemKind.TIMED_OUT: "reward/too-slow",
    ProblemKind.DIED: "reward/died",
    ProblemKind.NOT_REACHED: "reward/failed",
}
"""Kind of a failure of a reward's code -> the code of an error that has none of its own."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleScore:
    """Scores of one sample from all rewards."""

    reward: float | None
    """Sum of weight times score over the rewards; None if and only if the sample is dropped."""
    rewards: Mapping[str, float] = field(default_factory=dict)
    """Score of each reward, unweighted, by the reward's name."""
    step_rewards: tuple[tuple[int, float], ...] = ()
    """Weighted parts of ``reward`` on single actions: index among the sample's actions, and the part."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """``name/metric`` of each reward. With ``on_error = value`` also ``name/failed``, 0 or 1."""
    dropped: str | None = None
    """``name_failed``, with the name of the reward because of which the sample's group is dropped; None otherwise."""


class RewardPanel:
    """Several rewards that score as one. The caller starts the panel, scores any number of times and always closes it.

    The score of a sample is ``sum_k weight_k * score_k`` over the rewards k, added in the order of the selections. The
    score depends on no other sample.
    """

    def __init__(self, selections: Sequence[Selection]) -> None:
        self._hosts = [RewardHost(selection) for selection in selections]
        names = [host.name for host in self._hosts]
        if len(set(names)) < len(names):
            raise RewardError(
                f"two rewards have the same name: {', '.join(sorted(names))}",
                code="reward/repeated-name",
            )

    async def start(self) -> None:
        """Start all rewards.

        Raises:
            RewardError: a reward cannot be built; the panel has stopped all rewards.
        """
        try:
            await all_at_once(host.start() for host in self._hosts)
        except BaseException:
            await self.close()
            raise

    async def score(self, requests: Sequence[RewardRequest]) -> list[SampleScore]:
        """Return one score per request, in order.

        Raises:
            RewardError: a reward with ``on_error = fail`` could not score a sample, or ``RewardHost.score`` raised.
        """
        if not requests:
            return []
        outcomes_by_host = await all_at_once(
            host.score(requests, stop_at_problem=host.options.on_error == "fail")
            for host in self._hosts
        )
        parts = [
            _by_policy(host, requests, outcomes)
            for host, outcomes in zip(self._hosts, outcomes_by_host, strict=True)
        ]
        return [_sum(samples) for samples in zip(*parts, strict=True)]

    async def close(self) -> None:
        """Stop all rewards and all their processes."""
        await asyncio.gather(*(host.close() for host in self._hosts))


def _by_policy(
    host: RewardHost, requests: Sequence[RewardRequest], outcomes: Sequence[RewardOutcome]
) -> list[SampleScore]:
    """Return one reward's weighted part of each sample's score; a failed sample is treated by ``on_error``."""
    failed = [
        (request.uid, outcome.problem)
        for request, outcome in zip(requests, outcomes, strict=True)
        if outcome.problem is not None
    ]
    if failed:
        guilty = [one for one in failed if one[1].kind is not ProblemKind.NOT_REACHED] or failed
        message = _describe(host, guilty, len(failed) - len(guilty))
        if host.options.on_error == "fail":
            first = guilty[0][1]
            raise RewardError(message, code=first.code or _CODES[first.kind])
        log.warning("%s", message)
    return [_part(host, outcome) for outcome in outcomes]


def _part(host: RewardHost, outcome: RewardOutcome) -> SampleScore:
    options = host.options
    if outcome.problem is not None and options.on_error == "drop":
        return SampleScore(reward=None, dropped=f"{host.name}_failed")
    reward = options.error_value if outcome.reward is None else outcome.reward
    metrics = {f"{host.name}/{key}": value for key, value in outcome.metrics.items()}
    if options.on_error == "value":
        metrics[f"{host.name}/failed"] = float(outcome.problem is not None)
    return SampleScore(
        reward=options.weight * reward,
        rewards={host.name: reward},
        step_rewards=tuple((at, options.weight * part) for at, part in outcome.step_rewards),
        metrics=metrics,
    )


def _sum(parts: Sequence[SampleScore]) -> SampleScore:
    dropped = next((part.dropped for part in parts if part.dropped is not None), None)
    return SampleScore(
        reward=None if dropped else sum(part.reward or 0.0 for part in parts),
        rewards={name: reward for part in parts for name, reward in part.rewards.items()},
        step_rewards=tuple(step for part in parts for step in part.step_rewards),
        metrics={name: value for part in parts for name, value in part.metrics.items()},
        dropped=dropped,
    )


def _describe(host: RewardHost, guilty: Sequence[tuple[str, Problem]], num_others: int) -> str:
    """Return the message on failed samples: the first guilty sample's problem, the number of others, and the advice."""
    uid, problem = guilty[0]
    registered = host.selection.registered
    others = f" and {len(guilty) - 1} more" if len(guilty) > 1 else ""
    if num_others:
        others += f" ({num_others} others were not asked again)"
    lines = [
        f"reward {host.name} ({registered.qualified}, {registered.origin}) could not score {uid}{others}: "
        f"it {problem.text}",
        *(f"  {line}" for line in problem.where),
        _advice(host, problem),
    ]
    return "\n".join(f"  {line}" if index else line for index, line in enumerate(lines))


def _advice(host: RewardHost, problem: Problem) -> str:
    section, options = host.selection.section, host.options
    if options.on_error == "drop":
        return f"The groups of these samples are dropped, as --{section}.on_error says."
    if options.on_error == "value":
        return f"They get {options.error_value:g}, as --{section}.on_error says."
    policies = f"or set --{section}.on_error to drop (leave out the sample's group) or value."
    if problem.kind in (ProblemKind.TIMED_OUT, ProblemKind.NOT_REACHED):
        return f"Raise --{section}.timeout_s (it is {options.timeout_s:g}), {policies}"
    return f"Correct the reward, {policies}"
