"""Conversations of an episode, by what a client sends to go on with them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from rlhf_core.contracts import Message

from ..dialects.model_request import ModelRequest
from .calls import SampledCall
from .identity import chain_of, start_of, with_message


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


class CallNames:
    """The ids that an episode's answers gave to their tool calls. A client may have rewritten them, each for one of
    ours; the conversation is the same.

    Some agents add a prefix, others give calls ids of their own. Templates write ids, or refuse those of another form,
    and the identity of a message has them; so they are put back before a request is read.
    """

    def __init__(self) -> None:
        self._given: set[str] = set()
        self._calls: dict[bytes, list[SampledCall]] = {}
        """Answers with tool calls, under the digest of the conversation in which ids are numbers."""

    def add(self, request: ModelRequest, call: SampledCall) -> None:
        """Remember the ids of an answer to a request's conversation."""
        if ids := _ids(call.message):
            self._given.update(ids)
            *_, digest = _digests(request, [*request.messages, call.message])
            self._calls.setdefault(digest, []).append(call)

    def put_back(self, request: ModelRequest) -> ModelRequest:
        """Return a request with our ids in place of those that its client wrote for them."""
        theirs = {each for message in request.messages for each in _ids(message)} - self._given
        if not theirs or not self._given:
            return request
        # Another prefix alone, as that of a dialect.
        names = {each: _bare(each) for each in theirs if _bare(each) in self._given}
        if len(names) < len(theirs):
            names |= self._matched(request)
        if not names:
            return request
        messages = _with_names(request.messages, lambda name: names.get(name, name))
        return replace(request, messages=tuple(messages))

    def _matched(self, request: ModelRequest) -> dict[str, str]:
        """Return our id for each of the request's, by the answers that its conversation holds but for their ids."""
        names: dict[str, str] = {}
        for message, digest in zip(
            request.messages, _digests(request, request.messages), strict=True
        ):
            ids = _ids(message)
            if not ids or digest not in self._calls:
                continue
            # Of parallel answers that are equal, the one whose ids are left in the client's.
            call = min(
                self._calls[digest],
                key=lambda one: (
                    not all(ours in his for ours, his in zip(_ids(one.message), ids, strict=True)),
                    one.place,
                ),
            )
            names |= dict(zip(ids, _ids(call.message), strict=True))
        return names


def _digests(request: ModelRequest, messages: Sequence[Message]) -> Iterator[bytes]:
    """Yield the digest of the conversation up to each message, with ids as numbers and without thoughts."""
    numbers: dict[str, str] = {}
    digest = start_of(request.tools, request.template_kwargs)
    for message in _with_names(messages, lambda name: numbers.setdefault(name, str(len(numbers)))):
        digest = with_message(digest, message, reasoning=False)
        yield digest


def _with_names(messages: Sequence[Message], name_of: Callable[[str], str]) -> Iterator[Message]:
    for message in messages:
        changed: Mapping[str, object] = message
        if calls := message.get("tool_calls"):
            named = [{**call, "id": name_of(call["id"])} for call in calls]
            changed = {**message, "tool_calls": named}
        elif message.get("tool_call_id"):
            changed = {**message, "tool_call_id": name_of(message["tool_call_id"])}
        yield changed


def _ids(message: Message) -> list[str]:
    return [call["id"] for call in message.get("tool_calls") or ()]


def _bare(name: str) -> str:
    return name.rpartition("_")[2]
