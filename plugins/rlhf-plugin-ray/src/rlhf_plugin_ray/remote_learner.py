"""The learner that the loop sees: sends each batch, or where it is, to the process that learns."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import replace

from rlhf_core.contracts import LearnOutcome, LearnRequest

from .learner_actor import Blocks
from .process import Process
from .role import DEATH_KNOWN_S, RayRole
from .stored_tokens import references_of, without_tokens
from .supervisor import ProcessLost, Supervisor


class RemoteLearner:
    """Implements ``rlhf_core.contracts.Learner``."""

    def __init__(
        self,
        process: Process,
        roles: Mapping[str, RayRole],
        supervisor: Supervisor,
        timeout_s: float,
    ) -> None:
        self._process = process
        self._roles = roles
        self._supervisor = supervisor
        self._timeout_s = timeout_s

    async def learn(self, request: LearnRequest) -> LearnOutcome:
        """Return what the process made of the batch. Meanwhile no other call of this process reaches the roles."""
        references = references_of(request.batch)
        blocks = None if references is None else Blocks(references)
        if blocks is not None:
            request = replace(request, batch=without_tokens(request.batch))
        async with AsyncExitStack() as stack:
            for role in self._roles.values():
                await stack.enter_async_context(role.held())
                role.changes += 1
            return await self._ask(request, blocks)

    async def _ask(self, request: LearnRequest, blocks: Blocks | None) -> LearnOutcome:
        try:
            outcome: LearnOutcome = await self._supervisor.result(
                self._process.actor.learn.remote(request, blocks),
                self._process.who,
                "learn",
                self._timeout_s,
            )
        except ProcessLost as error:
            # It says that a rank died, which this process is about to learn, too, with what to do about it.
            raise await self._supervisor.cause_of(error, DEATH_KNOWN_S) from error.__cause__
        return outcome
