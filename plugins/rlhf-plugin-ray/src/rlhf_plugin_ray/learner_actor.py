"""The process that learns in the driver's place: it has whole batches in memory, so that the driver does not."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import ray

from rlhf_core.contracts import Learner, LearnOutcome, LearnRequest
from rlhf_core.learner_process import open_learner

from .actor import Actor
from .config import RayRuntimeConfig
from .process import Process
from .role import RayRole, SharedBatches
from .stored_tokens import StoredBlock, with_blocks
from .supervisor import Supervisor


@dataclass(frozen=True, slots=True)
class Blocks:
    """References that Ray is to hand over as they are, not what they refer to."""

    references: Sequence[ray.ObjectRef]


class LearnerActor(Actor):
    """Made empty; ``prepare`` and then ``start`` make it a learner."""

    def __init__(self) -> None:
        self._learner: Learner
        self._supervisor = Supervisor()

    async def start(
        self,
        config: Mapping[str, Any],
        roles: Mapping[str, Sequence[Process]],
        options: RayRuntimeConfig,
    ) -> None:
        """Build what learning needs.

        Args:
            roles: the ranks of each, which have their models already.
        """
        batches = SharedBatches()
        handles = {
            name: RayRole(ranks, self._supervisor, batches, options)
            for name, ranks in roles.items()
        }
        self._learner = open_learner(config, handles, self._plugins)

    async def learn(self, request: LearnRequest, blocks: Blocks | None) -> LearnOutcome:
        """Learn from a batch.

        Args:
            blocks: where its tokens are; None: they came along.
        """
        if blocks is not None:
            columns = await asyncio.gather(*blocks.references)
            stored = list(map(StoredBlock, blocks.references, columns))
            request = replace(request, batch=with_blocks(request.batch, stored))
        return await self._learner.learn(request)

    async def close(self) -> None:
        """Nothing to end: it has only asked others."""
        self._supervisor.close()
