"""The loop's learner: sends each batch, or references to its tokens, to the learner's process."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import replace

from rlhf_core.contracts import LearnOutcome, LearnRequest

from ..batches.stored_tokens import references_of, without_tokens
from ..processes.process import ActorProcess
from ..processes.supervisor import ProcessLost, Supervisor
from .learner_actor import Blocks, Learned
from .role import DEATH_KNOWN_S, RayRole


class RemoteLearner:
    """Implements ``rlhf_core.contracts.Learner``.

    Args:
        process: the learner's process.
        roles: all roles of the run, which the learner's process calls while it learns.
        timeout_s: deadline for everything that is learned from one batch.
    """

    def __init__(
        self,
        process: ActorProcess,
        roles: Mapping[str, RayRole],
        supervisor: Supervisor,
        timeout_s: float,
    ) -> None:
        self._process = process
        self._roles = roles
        self._supervisor = supervisor
        self._timeout_s = timeout_s

    async def learn(self, request: LearnRequest) -> LearnOutcome:
        """Have the learner's process learn from a batch, and return the outcome.

        Until then no other call of the driver reaches the roles.

        Raises:
            ProcessLost: the learner's process or a rank died, or missed a deadline.
            RLHFError: learning failed.
        """
        references = references_of(request.batch)
        blocks = None if references is None else Blocks(references)
        if blocks is not None:
            request = replace(request, batch=without_tokens(request.batch))
        async with AsyncExitStack() as stack:
            changes = {}
            for name, role in self._roles.items():
                await stack.enter_async_context(role.held())
                changes[name] = role.changes
                role.begin_change()
            learned = await self._ask(request, blocks, changes)
            for name, role in self._roles.items():
                role.changes = learned.changes[name]
        return learned.outcome

    async def _ask(
        self, request: LearnRequest, blocks: Blocks | None, changes: Mapping[str, int]
    ) -> Learned:
        try:
            learned: Learned = await self._supervisor.result(
                self._process.actor.learn.remote(request, blocks, changes),
                self._process.who,
                "learn",
                self._timeout_s,
            )
        except ProcessLost as error:
            # The error may say that a rank died. The driver is about to notice the death itself, and its own error
            # also names the fix.
            raise await self._supervisor.cause_of(error, DEATH_KNOWN_S) from error.__cause__
        return learned
