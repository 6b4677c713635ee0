"""Conversations of an episode, by what a client sends to go on with them."""

from __future__ import annotations

from dataclasses import dataclass

from ..dialects.model_request import ModelRequest
from .calls import SampledCall
from .identity import chain_of, start_of, with_message
from .renaming import CallNames


@dataclass(frozen=True, slots=True, kw_only=True)
class Continued:
    """The call whose answer a conversation holds last."""

    call: SampledCall
    length: int
    """Messages of the conversation through that answer."""


class Histories:
    """Every answer of an episode, under the digest of the conversation that ends with it.

    An answer that thought is found without its thought too, for most clients send no thoughts back. While the answer's
    tools are being called, the policy then goes on with its thought, as templates have it. Once a user speaks, the
    thought is gone from the conversation: the request reads another history, and forks.

    Args:
        keeps_thoughts: an answer is gone on with although the client left out its thought.
    """

    def __init__(self, *, keeps_thoughts: bool) -> None:
        self._keeps_thoughts = keeps_thoughts
        self._answers: dict[bytes, list[SampledCall]] = {}
        self._bare_answers: dict[bytes, list[SampledCall]] = {}
        self._last_chain: tuple[ModelRequest | None, list[bytes]] = (None, [])
        self.names = CallNames()
        self.num_thoughts_dropped = 0
        """Requests that fork because the client left a thought out."""

    def add(self, request: ModelRequest, call: SampledCall) -> None:
        """Remember the answer to a request's conversation."""
        self.names.add(request, call)
        before = self._chain(request)[-1] if request.messages else _start_of(request)
        key = with_message(before, call.message)
        self._answers.setdefault(key, []).append(call)
        if call.message.get("reasoning_content"):
            bare = with_message(before, call.message, reasoning=False)
            self._bare_answers.setdefault(bare, []).append(call)

    def longest(self, request: ModelRequest) -> Continued | None:
        """Return the last answer that a request's conversation holds as it was given; None: it holds none."""
        messages, chain = request.messages, self._chain(request)
        last_user = max(
            (index for index, each in enumerate(messages) if each["role"] == "user"), default=-1
        )
        is_dropped = False
        for index in range(len(messages) - 1, -1, -1):
            if messages[index]["role"] != "assistant":
                continue
            calls = self._answers.get(chain[index])
            if calls is None and (bare := self._bare_answers.get(chain[index])) is not None:
                if self._keeps_thoughts or index > last_user:
                    calls = bare
                else:
                    is_dropped = True
            if calls is not None:
                self.num_thoughts_dropped += is_dropped
                return Continued(call=min(calls, key=_place), length=index + 1)
        self.num_thoughts_dropped += is_dropped
        return None

    def _chain(self, request: ModelRequest) -> list[bytes]:
        """Return the digests of a conversation. Those of the last one are kept, for its answer often comes next."""
        if request is not self._last_chain[0]:
            self._last_chain = (request, chain_of(_start_of(request), request.messages))
        return self._last_chain[1]


def _start_of(request: ModelRequest) -> bytes:
    return start_of(request.tools, request.template_kwargs)


def _place(call: SampledCall) -> bytes:
    return call.place
