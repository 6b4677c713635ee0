"""The actor of the learner: a process that turns batches into updates, so that the driver holds no batch in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import ray

from rlhf_core.contracts import Learner, LearnOutcome, LearnRequest, TokenColumns
from rlhf_trainer.learning.process import open_learner

from ..batches.stored_tokens import StoredBlock, with_blocks
from ..config import RayRuntimeConfig
from ..processes.actor import Actor
from ..processes.process import ActorProcess
from ..processes.supervisor import Supervisor
from .role import RayRole, SharedBatches


@dataclass(frozen=True, slots=True)
class Blocks:
    """References to blocks of tokens. Ray replaces a reference that is an argument of a call by its object, but not a
    reference inside of another object such as this one."""

    references: Sequence[ray.ObjectRef[TokenColumns]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Learned:
    """The learner's answer."""

    outcome: LearnOutcome
    changes: Mapping[str, int]
    """``RayRole.changes`` of each role, which the driver's handles take over."""


class LearnerActor(Actor):
    """A learner in a process of its own. ``prepare`` and ``start`` have to come first, in this order."""

    def __init__(self) -> None:
        self._learner: Learner
        self._roles: Mapping[str, RayRole]
        self._supervisor = Supervisor()

    async def start(
        self,
        config: Mapping[str, Any],
        roles: Mapping[str, Sequence[ActorProcess]],
        options: RayRuntimeConfig,
    ) -> None:
        """Build the learner.

        Args:
            config: the run's configuration, as plain values.
            roles: ranks of each role, which have loaded their models already.
            options: options of the Ray runtime.
        """
        batches = SharedBatches()
        self._roles = handles = {
            name: RayRole(ranks, self._supervisor, batches, options)
            for name, ranks in roles.items()
        }
        self._learner = open_learner(config, handles, self._plugins)

    async def learn(
        self, request: LearnRequest, blocks: Blocks | None, changes: Mapping[str, int]
    ) -> Learned:
        """Learn from a batch.

        Args:
            blocks: blocks with the batch's tokens; None if the request holds the tokens itself.
            changes: ``RayRole.changes`` of the driver's handles.
        """
        for name, number in changes.items():
            self._roles[name].changes = number
        if blocks is not None:
            columns = await asyncio.gather(*blocks.references)
            stored = list(map(StoredBlock, blocks.references, columns))
            request = replace(request, batch=with_blocks(request.batch, stored))
        outcome = await self._learner.learn(request)
        return Learned(
            outcome=outcome, changes={name: role.changes for name, role in self._roles.items()}
        )

    async def close(self) -> None:
        """End the waits for ranks; the learner has started no processes."""
        self._supervisor.close()
