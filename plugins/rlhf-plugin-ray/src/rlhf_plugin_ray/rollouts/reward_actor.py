"""The actor that holds the rewards which all rollout workers ask, and the worker's side of it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from rlhf_core.contracts import RolloutSpec
from rlhf_trainer.rollouts.worker import QueuedRewards, open_rewards

from ..processes.actor import Actor
from ..processes.process import ActorProcess
from ..processes.supervisor import Supervisor

if TYPE_CHECKING:
    from rlhf_trainer.rollouts.worker import Requests, Scores

SET_BY_RAY = ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS")
"""Variables that Ray sets in a process by the resources that it takes. The rewards' process takes none, and sees what
the driver sees."""


class RewardActor(Actor):
    """The rewards of a run in one process on the driver's machine. ``prepare`` and ``start`` have to come first, in
    this order."""

    def __init__(self) -> None:
        self._rewards: QueuedRewards | None = None

    async def start(self, spec: RolloutSpec, variables: Mapping[str, str | None]) -> None:
        """Build the rewards and start their processes.

        Args:
            variables: values of ``SET_BY_RAY`` in the driver; None for a variable that is not set there.

        Raises:
            RewardError: a reward cannot be built.
        """
        for name, value in variables.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        self._rewards = open_rewards(spec, self._plugins)
        assert self._rewards is not None, "the spec has rewards"
        await self._rewards.start()

    async def score(self, requests: Requests) -> Scores:
        """Return one score per request, in order. What several workers ask meanwhile is scored in one call.

        Raises:
            RewardError: a sample could not be scored, and its reward's policy is to fail.
        """
        assert self._rewards is not None, "start comes first"
        return await self._rewards.score(requests)

    async def close(self) -> None:
        """Stop the rewards and all their processes."""
        if self._rewards is not None:
            await self._rewards.close()


class AskedRewards:
    """Rewards of a rollout worker that are those of the ``RewardActor``. Implements ``rollouts.worker.Rewards``.

    Args:
        timeout_s: deadline for the scores of one group.
    """

    def __init__(self, process: ActorProcess, supervisor: Supervisor, timeout_s: float) -> None:
        self._process = process
        self._supervisor = supervisor
        self._timeout_s = timeout_s

    async def start(self) -> None:
        """Do nothing: the runtime has started the actor."""

    async def score(self, requests: Requests) -> Scores:
        """Return the actor's scores.

        Raises:
            ProcessLost: the actor died, or missed the deadline.
            RewardError: a sample could not be scored, and its reward's policy is to fail.
        """
        scores: Scores = await self._supervisor.result(
            self._process.actor.score.remote(requests),
            self._process.who,
            "score",
            self._timeout_s,
        )
        return scores

    async def close(self) -> None:
        """Do nothing: the runtime ends the actor."""
