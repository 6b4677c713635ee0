"""Runtime of a replay: the run's own one, with episodes and learning in the process that drives the run.

There samples can be kept and given again, and the policy's log-probs be heard. A runtime that plays groups elsewhere
gives bitwise the same ones as this process would (``rlhf_core.contracts.GroupPlayer``), and so does a learner.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, cast

from rlhf_core.contracts import (
    Placement,
    RoleHandle,
    Runtime,
    RuntimeSpec,
    Statistic,
    StepOutcome,
    StepPlan,
    TrainBatch,
    TrajectoryColumns,
)
from rlhf_core.lazy import NDArray, np
from rlhf_core.plugins import Plugins

_POLICY = "policy"
Hear = Callable[[TrajectoryColumns, "NDArray[np.float32]"], None]
"""Told of a batch and (sum of A,) the policy's log-probs of its actions, before the updates of a step."""


class HereRuntime:
    """Implements ``rlhf_core.contracts.Runtime`` around another.

    Args:
        hear: told once a step of the log-probs of all its samples or, where the run computes none before the updates,
            of those of the first update's.
    """

    plays_groups = False

    def __init__(self, inner: Runtime, hear: Hear | None = None) -> None:
        self._inner = inner
        self._hear = hear

    async def start(self, spec: RuntimeSpec, plugins: Plugins) -> Placement:
        """Start the inner runtime without processes that play episodes."""
        placement = await self._inner.start(replace(spec, rollouts=None), plugins)
        roles = dict(placement.roles)
        if self._hear is not None:
            # The methods that are not of the class are the handle's own.
            roles[_POLICY] = cast(RoleHandle, _HeardRole(roles[_POLICY], self._hear))
        return replace(placement, roles=roles, groups=None, learner=None)

    async def close(self) -> None:
        await self._inner.close()


class _HeardRole:
    """Handle of the policy that tells of its log-probs; all else is the inner handle's, also what is no part of the
    contract but may be there, such as ``changes``."""

    def __init__(self, inner: RoleHandle, hear: Hear) -> None:
        self._inner = inner
        self._hear = hear

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def statistics(
        self, batch: TrajectoryColumns, names: Sequence[Statistic]
    ) -> dict[Statistic, NDArray[np.float32]]:
        found = await self._inner.statistics(batch, names)
        if "logprobs" in found:
            self._hear(batch, found["logprobs"])
        return found

    async def train_step(self, batch: TrainBatch, plan: StepPlan) -> StepOutcome:
        outcome = await self._inner.train_step(batch, plan)
        if outcome.logprobs is not None:
            self._hear(batch.trajectories, outcome.logprobs)
        return outcome
