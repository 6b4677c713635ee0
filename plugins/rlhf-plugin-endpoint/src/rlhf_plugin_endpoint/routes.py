"""Routes: from a path to its dialect, with the checks that are the same for all of them."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import orjson

from rlhf_core.contracts import Message

from .dialects import (
    anthropic_messages,
    openai_chat,
    openai_completions,
    openai_responses,
)
from .dialects.answer_form import form_of
from .dialects.anthropic_messages import read_anthropic
from .dialects.anthropic_replies import anthropic_events, anthropic_reply
from .dialects.fields import flag, read_object, text_of
from .dialects.model_request import ModelAnswer, ModelRequest
from .dialects.openai_chat import (
    DONE,
    ShownFields,
    chat_events,
    chat_reply,
    event,
    read_chat,
    read_shown,
)
from .dialects.openai_completions import (
    completion_events,
    completion_reply,
    read_completion,
    read_shown_text,
)
from .dialects.openai_responses import read_response_request
from .dialects.problems import RequestProblem, problem_body
from .dialects.request_fields import EFFORT, effort_of, unread, unread_problem
from .dialects.request_images import RequestImages
from .dialects.response_replies import response_events, response_id, response_reply
from .dialects.sampling import check_overrides, is_greedy
from .episode.answering import message_of
from .episode.identity import digest_of
from .episode.session import EpisodeSession
from .web.exchange import HttpReply, HttpRequest, StreamReply

PING_S = 5.0
"""Seconds after which a stream begins although there is no answer yet, and between its signs of life."""
PING = b": ping\n\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteOptions:
    """Options that all routes share."""

    models: tuple[str, ...]
    """Names that the policy answers to; ``*``: any. The first is what it calls itself."""
    max_n: int
    ignores_overrides: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Dialect:
    """One route: how its requests are read and its answers written."""

    read: Callable[[Mapping[str, Any], RequestImages, EpisodeSession, RouteOptions], ModelRequest]
    shown: Callable[[Mapping[str, Any]], ShownFields]
    whole: Callable[[Sequence[ModelAnswer], str, ShownFields, Mapping[str, Any]], dict[str, Any]]
    events: Callable[[Sequence[ModelAnswer], str, ShownFields, Mapping[str, Any]], Iterable[bytes]]
    fields: frozenset[str]
    """Names of the fields that it reads, beside those that all do."""
    is_anthropic: bool = False
    has_forms: bool = True
    """Its requests may ask for JSON or for the call of a tool."""


class Routes:
    """Answers the requests of one episode."""

    def __init__(self, session: EpisodeSession, api_key: str, options: RouteOptions) -> None:
        self._session, self._key, self._options = session, api_key, options

    async def answer(self, route: str, request: HttpRequest) -> HttpReply | StreamReply:
        """Return the reply to a request.

        Args:
            route: the path behind the episode's address.

        Raises:
            RequestProblem: the request is refused.
        """
        try:
            return await self._answer(route, request)
        except RequestProblem as problem:
            self._session.note_refusal(problem, route)
            raise

    async def _answer(self, route: str, request: HttpRequest) -> HttpReply | StreamReply:
        _check_key(request.headers, self._key)
        if route == "/v1/models" or route.startswith("/v1/models/"):
            return self._models(route.removeprefix("/v1/models").removeprefix("/"))
        counts = route == "/v1/messages/count_tokens"
        dialect = _DIALECTS.get("/v1/messages" if counts else route)
        if dialect is None:
            raise RequestProblem(
                f"there is no {route}; expected one of {', '.join(_DIALECTS)}, /v1/messages/count_tokens and "
                "/v1/models",
                status=404,
                code="unknown_route",
            )
        if request.method != "POST":
            raise RequestProblem(
                f"{request.method} {route}; expected POST", status=405, code="method"
            )
        body = read_object(request.body)
        model = self._model(body)
        if counts:
            read = read_anthropic(body, self._images(), needs_limit=False)
            return _json({"input_tokens": self._session.count_tokens(read)})
        return await self._sample(dialect, route, body, model, request)

    async def _sample(
        self,
        dialect: _Dialect,
        route: str,
        body: Mapping[str, Any],
        model: str,
        request: HttpRequest,
    ) -> HttpReply | StreamReply:
        session, headers = self._session, request.headers
        session.num_ignored += check_overrides(
            body, session.sampling, ignore=self._options.ignores_overrides
        )
        shown = dialect.shown(body)
        agent = headers.get("x-rlhf-agent") or text_of(body.get("agent") or "", "agent")
        images = self._images()
        wanted = dialect.read(body, images, session, self._options)
        if dialect.has_forms:
            wanted = replace(wanted, form=form_of(body, wanted.tools))
        if is_greedy("temperature", body.get("temperature")) and session.sampling.temperature:
            wanted = replace(wanted, greedy=True)
        session.num_ignored += images.num_ignored
        self._check_read(body, dialect.fields, route)
        wanted = self._with_effort(wanted, body)
        logprobs = shown.logprobs or shown.token_ids
        if logprobs or agent:
            wanted = replace(wanted, logprobs=logprobs, agent=agent)
        answering = session.answers(
            wanted,
            digest_of(route.encode(), request.body),
            key=headers.get("idempotency-key", ""),
            is_retry=_is_retry(headers),
        )
        if flag(body, "stream"):
            return await _streamed(
                asyncio.ensure_future(answering),
                lambda answers: dialect.events(answers, model, shown, body),
                is_anthropic=dialect.is_anthropic,
                keep=lambda answers: self._keep(route, body, wanted, answers),
            )
        answers = await answering
        self._keep(route, body, wanted, answers)
        return _json(dialect.whole(answers, model, shown, body))

    def _check_read(self, body: Mapping[str, Any], fields: frozenset[str], route: str) -> None:
        """Refuse fields that nothing here reads, or count them.

        Raises:
            RequestProblem: there is one, and the run does not leave such fields aside.
        """
        for name in unread(body, fields):
            if not self._options.ignores_overrides:
                raise unread_problem(name, body[name], route)
            self._session.num_ignored += 1

    def _with_effort(self, wanted: ModelRequest, body: Mapping[str, Any]) -> ModelRequest:
        """Return a request with the effort that a client asks for, where the chat template reads one."""
        effort = effort_of(body)
        if effort is None or wanted.prompt is not None:
            return wanted
        if self._session.takes_variable(EFFORT, effort):
            return replace(wanted, template_kwargs={**wanted.template_kwargs, EFFORT: effort})
        if not self._options.ignores_overrides:
            raise RequestProblem(
                f"{EFFORT} is {effort[:60]!r}, but the model's chat template reads no variable of this name, so "
                "nothing would tell the policy. Leave it out, or run with --rollout.endpoint.overrides ignore",
                code="not_overridable",
                parameter=EFFORT,
            )
        self._session.num_ignored += 1
        return wanted

    def _images(self) -> RequestImages:
        return RequestImages(
            self._session.images, ignores_overrides=self._options.ignores_overrides
        )

    def _keep(
        self,
        route: str,
        body: Mapping[str, Any],
        request: ModelRequest,
        answers: Sequence[ModelAnswer],
    ) -> None:
        """Keep the conversation behind a response, so that the next request can name it."""
        if route == "/v1/responses":
            said: Sequence[Message] = request.messages[1 if body.get("instructions") else 0 :]
            (answer,) = answers
            # As the client got it, for results name calls so.
            calls = tuple(replace(call, id=f"call_{call.id}") for call in answer.tool_calls)
            got = message_of(replace(answer, tool_calls=calls))
            self._session.responses[response_id(answer)] = (*said, got)

    def _model(self, body: Mapping[str, Any]) -> str:
        names = self._options.models
        name = text_of(body.get("model"), "model")
        if name not in names and "*" not in names:
            raise RequestProblem(
                f"there is no model {name[:200]!r}; expected one of {', '.join(names)}; if the "
                "agent means the policy, name it with --rollout.endpoint.models, of which * is any name",
                status=404,
                code="model_not_found",
                parameter="model",
            )
        return name

    def _models(self, name: str) -> HttpReply:
        names = [each for each in self._options.models if each != "*"]
        cards = [
            {"id": each, "object": "model", "created": 0, "owned_by": "rlhf"} for each in names
        ]
        if not name:
            return _json({"object": "list", "data": cards, "has_more": False})
        return _json({**cards[0], "id": self._model({"model": name})} if cards else {"id": name})


async def _streamed(
    work: asyncio.Future[list[ModelAnswer]],
    events: Callable[[Sequence[ModelAnswer]], Iterable[bytes]],
    *,
    is_anthropic: bool,
    keep: Callable[[Sequence[ModelAnswer]], None],
) -> HttpReply | StreamReply:
    """Return a stream once there is an answer, or after a while; a problem before that has its own status."""
    try:
        done, _ = await asyncio.wait({work}, timeout=PING_S)
    except asyncio.CancelledError:
        work.cancel()
        raise
    if done:
        keep(work.result())

    async def parts() -> AsyncIterator[bytes]:
        try:
            while not work.done():
                yield PING
                await asyncio.wait({work}, timeout=PING_S)
            answers = work.result()
        except RequestProblem as problem:
            error = problem_body(problem, is_anthropic=is_anthropic)
            yield event(error, "error" if is_anthropic else "")
            return
        finally:
            work.cancel()
        keep(answers)
        # One write for all events: the whole answer is there.
        yield b"".join(events(answers))

    return StreamReply(parts=parts())


def _check_key(headers: Mapping[str, str], key: str) -> None:
    kind, _, given = headers.get("authorization", "").partition(" ")
    found = given.strip() if kind.lower() == "bearer" else headers.get("x-api-key", "")
    if not hmac.compare_digest(found.encode(), key.encode()):
        raise RequestProblem(
            "expected the episode's key as 'Authorization: Bearer KEY' or 'x-api-key: KEY'",
            status=401,
            code="invalid_api_key",
        )


def _is_retry(headers: Mapping[str, str]) -> bool:
    count = headers.get("x-stainless-retry-count", "0")
    return count.isdecimal() and int(count) > 0


def _json(value: Mapping[str, Any]) -> HttpReply:
    return HttpReply(body=orjson.dumps(value))


def _only_token_ids(body: Mapping[str, Any]) -> ShownFields:
    return ShownFields(token_ids=flag(body, "return_token_ids"))


_DIALECTS: Mapping[str, _Dialect] = {
    "/v1/chat/completions": _Dialect(
        fields=openai_chat.FIELDS,
        read=lambda body, images, session, options: read_chat(body, images, max_n=options.max_n),
        shown=read_shown,
        whole=lambda answers, model, shown, body: chat_reply(answers, model, shown),
        events=lambda answers, model, shown, body: [
            *(event(each) for each in chat_events(answers, model, shown)),
            DONE,
        ],
    ),
    "/v1/completions": _Dialect(
        fields=openai_completions.FIELDS,
        has_forms=False,
        read=lambda body, images, session, options: read_completion(body, max_n=options.max_n),
        shown=read_shown_text,
        whole=lambda answers, model, shown, body: completion_reply(answers, model, shown),
        events=lambda answers, model, shown, body: [
            *(event(each) for each in completion_events(answers, model, shown)),
            DONE,
        ],
    ),
    "/v1/responses": _Dialect(
        fields=openai_responses.FIELDS,
        read=lambda body, images, session, options: read_response_request(
            body, session.responses, images
        ),
        shown=_only_token_ids,
        whole=lambda answers, model, shown, body: response_reply(answers[0], model, shown, body),
        events=lambda answers, model, shown, body: [
            event(data, name) for name, data in response_events(answers[0], model, shown, body)
        ],
    ),
    "/v1/messages": _Dialect(
        fields=anthropic_messages.FIELDS,
        read=lambda body, images, session, options: read_anthropic(body, images),
        shown=_only_token_ids,
        whole=lambda answers, model, shown, body: anthropic_reply(answers[0], model, shown),
        events=lambda answers, model, shown, body: [
            event(data, name) for name, data in anthropic_events(answers[0], model, shown)
        ],
        is_anthropic=True,
    ),
}
