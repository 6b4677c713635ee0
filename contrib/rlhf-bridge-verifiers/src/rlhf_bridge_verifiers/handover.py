"""Turns of a rollout that asks a model for answers itself: each question becomes an observation, each action an answer.

The rollout runs as a task of its own and waits wherever it asks. Only messages that are new since the last question
are shown, because the policy's tokens before them are never rendered again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from rlhf_core import RolloutError
from rlhf_core.contracts import Action

OutcomeT = TypeVar("OutcomeT")
Message = Mapping[str, Any]
Ask = Callable[[Sequence[Message]], Awaitable[Action]]


class Stopped(Exception):
    """The policy answers no more, since a limit of the run ended its turns."""


class Handover(Generic[OutcomeT]):
    """One rollout.

    Args:
        run: the rollout; its argument asks for the answer to a whole conversation.
    """

    def __init__(self, run: Callable[[Ask], Awaitable[OutcomeT]]) -> None:
        self._questions: asyncio.Queue[list[Message]] = asyncio.Queue()
        self._answer: asyncio.Future[Action] | None = None
        self._known: list[Message] = []
        self._stopped = False
        self._rollout = asyncio.ensure_future(run(self._ask))
        self.outcome: OutcomeT | None = None

    async def question(self) -> list[Message] | None:
        """Return the messages that are new in the next question; None: the rollout has ended, with ``outcome``.

        Raises:
            Exception: the rollout's own.
        """
        asked = asyncio.ensure_future(self._questions.get())
        try:
            await asyncio.wait({asked, self._rollout}, return_when=asyncio.FIRST_COMPLETED)
            if asked.done():
                return asked.result()
        finally:
            asked.cancel()
        self.outcome = self._rollout.result()
        return None

    def answer(self, action: Action) -> None:
        """Let the rollout go on with an answer."""
        assert self._answer is not None
        self._answer.set_result(action)

    def stop(self) -> None:
        """Answer the question that waits, and any further one, with ``Stopped``."""
        self._stopped = True
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(Stopped())

    async def close(self) -> None:
        """Cancel the rollout where it has not ended."""
        self._rollout.cancel()
        await asyncio.wait({self._rollout})

    async def _ask(self, conversation: Sequence[Message]) -> Action:
        if self._stopped:
            raise Stopped
        if self._answer is not None and not self._answer.done():
            raise RolloutError(
                "the environment asked a second question before the first was answered; expected one conversation. "
                "Play such an environment as an agent, whose requests may stand side by side",
                code="environment/two-questions",
            )
        new = _after(self._known, conversation)
        self._answer = asyncio.get_running_loop().create_future()
        self._questions.put_nowait(new)
        action = await self._answer
        self._known = [*conversation, {"role": "assistant", "content": action.text}]
        return action


def _after(known: Sequence[Message], conversation: Sequence[Message]) -> list[Message]:
    """Return the messages after those that are known."""
    begin = conversation[: len(known)]
    # An answer may come back in another form (its reasoning apart), so only its place is compared.
    same = len(begin) == len(known) and all(
        one["role"] == other["role"]
        and (one["role"] == "assistant" or one.get("content") == other.get("content"))
        for one, other in zip(begin, known, strict=True)
    )
    if not same or len(conversation) == len(known):
        raise RolloutError(
            "the environment rewrote its conversation between two questions; expected one that only grows. Play "
            "such an environment as an agent, whose requests may fork",
            code="environment/rewrote-history",
        )
    return list(conversation[len(known) :])


def plain(message: Any) -> Message:
    """Return a message of the library as a dict of a chat template."""
    fields: dict[str, Any] = (
        message if isinstance(message, dict) else message.model_dump(exclude_none=True)
    )
    kept: dict[str, Any] = {
        key: fields[key] for key in ("role", "content", "tool_call_id") if key in fields
    }
    content = kept.get("content", "")
    if isinstance(content, list):
        parts = [part for part in content if isinstance(part, dict)]
        if any(part.get("type") != "text" for part in parts):
            raise RolloutError(
                "the environment showed something other than text; expected text alone",
                code="environment/shows-no-text",
            )
        kept["content"] = "".join(str(part["text"]) for part in parts)
    return kept
