"""One episode at the endpoint: its requests, from the tokens that they read to what trains.

Everything runs on one event loop. The engine's work belongs to the session, not to the client's connection: a client
that goes away and asks again gets the answer that was begun.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np

from rlhf_core import RequestError, RolloutError
from rlhf_core.contracts import (
    Completion,
    EpisodeEnd,
    GenerationRequest,
    Message,
    RolloutContext,
    SamplingParams,
    Stop,
    Task,
    Uid,
)
from rlhf_episodes import EpisodeGraph, RequestNode

from ..dialects.answer_form import AnswerForm
from ..dialects.model_request import ModelAnswer, ModelRequest
from ..dialects.problems import RequestProblem
from .answering import answer_of, message_of
from .attempts import Attempts
from .calls import ModelInput, PlaceCounter, SampledCall, graph_of, turn_of
from .forks import Forks
from .forms import grammar_of
from .refusals import Refusals
from .rendering import Rendering
from .token_budget import TokenBudget

TOO_MANY_IMAGES = "too_many_images"
"""Code of the problem of a request with more images than an episode may have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionLimits:
    """Limits of an episode."""

    max_requests: int
    max_concurrency: int
    """Requests that the engine computes at once; others wait."""
    max_tokens: int | None
    """Tokens that the policy may write in all requests together."""
    request_timeout_s: float
    keeps_thoughts: bool
    measures_all: bool = False
    """The engine gives log-probs of all answers, whether or not the run reads them."""
    leaves_forms: bool = False
    """Forms that the engine cannot enforce are left aside, and counted."""


class _Wanted(NamedTuple):
    """Changes of a request to the run's sampling."""

    stop: tuple[str, ...]
    max_new_tokens: int
    logprobs: bool
    grammar: str | None
    temperature: float


class EpisodeSession:
    """The requests of one episode.

    Args:
        uid: name of the episode, with segment 0.
    """

    def __init__(
        self, uid: Uid, task: Task, context: RolloutContext, limits: SessionLimits
    ) -> None:
        self.uid = uid
        self.sampling = context.sampling
        self.attempts = Attempts()
        self.responses: dict[str, Sequence[Message]] = {}
        """The conversation behind each response of OpenAI's ``/v1/responses``, by its id, instructions excepted."""
        self.refusals = Refusals()
        self.forks = Forks(context.renderer)
        self.num_ignored = 0
        """Fields that clients sent and the run decides."""
        self.limit_hit: EpisodeEnd | None = None
        """The limit for which the last request was refused; None: it was answered."""
        self.broken: asyncio.Future[EpisodeEnd] = asyncio.get_running_loop().create_future()
        """Done when no further request can be answered: the engine aborted one, or, as its exception, failed."""
        self._context, self._limits = context, limits
        self.images = context.images
        """Takes images of requests in; None: the policy reads text alone."""
        self._rendering = Rendering(
            task, context.renderer, context.images, keeps_thoughts=limits.keeps_thoughts
        )
        self._places = PlaceCounter()
        self._turns = asyncio.Semaphore(limits.max_concurrency)
        self._calls: list[SampledCall] = []
        self._answers: dict[bytes, ModelAnswer] = {}
        # Requests of an episode mostly want the same, and checked parameters are made once for them.
        self._last_wanted: _Wanted | None = None
        self._last_sampling = context.sampling
        self._num_requests = 0
        self._num_fresh = 0
        self._num_shown_whole = 0
        self._tokens = TokenBudget(limits.max_tokens, partial(self._over, limit=EpisodeEnd.CONTEXT))

    async def answers(
        self, request: ModelRequest, digest: bytes, *, key: str, is_retry: bool
    ) -> list[ModelAnswer]:
        """Return the answers to a request, which may be a repetition of one.

        Args:
            digest: digest of what the client sent.
            key: its idempotency key; empty: none.

        Raises:
            RequestProblem: it cannot be answered.
        """
        attempt = await self.attempts.find_or_start(
            digest, key=key, is_retry=is_retry, start=lambda: self._work(request)
        )
        return [self._answers[call.place] for call in await attempt.wait()]

    def note_refusal(self, problem: RequestProblem, route: str = "") -> None:
        """Keep that a request was refused. One that was because the episode has as many images as it may has brought
        its agent to the end of its context, as one without room for tokens has."""
        if route:
            self.refusals.note(route, problem)
        if problem.code == TOO_MANY_IMAGES:
            self.limit_hit = EpisodeEnd.CONTEXT

    def count_tokens(self, request: ModelRequest) -> int:
        """Return the number of tokens that the engine would read."""
        return len(self._rendering.input_of(request).token_ids)

    def takes_variable(self, name: str, value: object) -> bool:
        """Return whether the chat template reads a variable."""
        try:
            self._rendering.renderer_of(ModelRequest(template_kwargs={name: value}))
        except RequestProblem:
            return False
        return True

    async def end(self) -> EpisodeGraph:
        """Cancel what is in work, and return the episode's graph, without answers that nobody got."""
        await self.attempts.end()
        # A future whose exception nobody asked for is reported when it goes.
        if not self.broken.cancel() and not self.broken.cancelled():
            self.broken.exception()
        return graph_of(self.uid, self._calls)

    def replies(self) -> dict[str, list[RequestNode]]:
        """Return the answers of each reply that a client got, by the name of its first one, once the episode ended."""
        return {
            self._answers[calls[0].place].name: [call.node for call in calls if call.node]
            for calls in self.attempts.delivered()
        }

    def metrics(self) -> dict[str, float]:
        """Return numbers of the episode.

        - ``endpoint/requests``: requests, repetitions excepted.
        - ``endpoint/retries``: repetitions.
        - ``endpoint/abandoned``: requests whose client went away before the answer came, and did not ask again.
        - ``endpoint/rendered``: requests whose input goes on with no earlier answer.
        - ``endpoint/whole_chats``: requests whose cost grew with the chat, since the template had to show all of it.
        - ``endpoint/thoughts_dropped``: requests that fork because the client left a thought out.
        - ``endpoint/ignored_fields``: fields of sampling that were left aside.
        - ``endpoint/unlearned_tokens``: tokens that a form or temperature 0 decided, which are no actions.
        """
        return {
            "endpoint/requests": float(self._num_requests),
            "endpoint/retries": float(self.attempts.num_retries),
            "endpoint/abandoned": float(sum(each.is_abandoned for each in self.attempts.all)),
            "endpoint/rendered": float(self._num_fresh),
            "endpoint/whole_chats": float(self._num_shown_whole),
            "endpoint/thoughts_dropped": float(self._rendering.histories.num_thoughts_dropped),
            "endpoint/ignored_fields": float(self.num_ignored),
            "endpoint/unlearned_tokens": float(
                sum((~call.node.learned).sum() for call in self._calls if call.node is not None)
            ),
        }

    async def _work(self, request: ModelRequest) -> list[SampledCall]:
        """Render a request, have it sampled, and keep what came."""
        self._admit(request)
        request = self._rendering.histories.names.put_back(request)
        try:
            read = self._rendering.input_of(request)
        except RequestProblem as problem:
            self.note_refusal(problem)
            raise
        self.forks.look(request, read)
        async with self._tokens.hold(self._most_tokens(request, read), request.n) as most:
            sampling = self._sampling(request, read, most)
            places = self._places.take(read, request.agent, request.n)
            self._num_fresh += read.parent is None
            self._num_shown_whole += read.showed_all
            completions = await self._generate(request, read, places, sampling)
            calls = [
                self._keep(request, read, completion, place)
                for completion, place in zip(completions, places, strict=True)
            ]
        self.limit_hit = None
        return calls

    def _admit(self, request: ModelRequest) -> None:
        if self.broken.done():
            raise self._over("the engine gives no more answers")
        most = self._limits.max_requests
        if self._num_requests + request.n > most:
            raise self._over(
                f"it has had its {most} requests; for more raise --rollout.endpoint.max_requests",
                EpisodeEnd.TURNS,
            )
        self._tokens.check(1)
        self._num_requests += request.n

    def _over(self, why: str, limit: EpisodeEnd | None = None) -> RequestProblem:
        self.limit_hit = limit or self.limit_hit
        return RequestProblem(f"the episode is over: {why}", status=403, code="episode_over")

    def _most_tokens(self, request: ModelRequest, read: ModelInput) -> int:
        num_read = len(read.token_ids)
        room = self._context.max_length - num_read
        if room <= 0:
            self.limit_hit = EpisodeEnd.CONTEXT
            raise RequestProblem(
                f"the request has {num_read} tokens and leaves no room for an answer: the maximum context length is "
                f"{self._context.max_length} tokens. Send less, or raise --rollout.max_length in the run",
                code="context_length_exceeded",
                parameter="messages",
            )
        return min(self.sampling.max_new_tokens, room, request.max_new_tokens or room)

    def _sampling(self, request: ModelRequest, read: ModelInput, most: int) -> SamplingParams:
        own = self.sampling
        wanted = _Wanted(
            stop=tuple(dict.fromkeys((*own.stop, *request.stop))) if request.stop else own.stop,
            max_new_tokens=most,
            logprobs=own.logprobs or request.logprobs or self._limits.measures_all,
            grammar=None if request.form is None else self._grammar(request, request.form, read),
            temperature=0.0 if request.greedy else own.temperature,
        )
        if wanted != self._last_wanted:
            self._last_wanted = wanted
            self._last_sampling = replace(
                own, **wanted._asdict(), min_new_tokens=min(own.min_new_tokens, most)
            )
        return self._last_sampling

    def _grammar(self, request: ModelRequest, form: AnswerForm, read: ModelInput) -> str | None:
        try:
            return grammar_of(form, self._rendering.renderer_of(request), read.token_ids.tolist())
        except RequestProblem:
            if not (form.free and self._limits.leaves_forms):
                raise
            self.num_ignored += 1
            return None

    async def _generate(
        self,
        request: ModelRequest,
        read: ModelInput,
        places: Sequence[bytes],
        sampling: SamplingParams,
    ) -> list[Completion]:
        sample = self.uid.sample
        wanted = GenerationRequest(
            uid=self.uid,
            turn=self._num_requests - 1,
            prompt_ids=tuple(read.token_ids.tolist()),
            media=read.media,
            seeds=tuple(self._context.seed(sample, turn_of(place)) for place in places),
            sampling=sampling,
        )
        limit = asyncio.timeout(self._limits.request_timeout_s)
        try:
            async with limit, self._turns:
                completions = await self._sampled(wanted)
        except TimeoutError as error:
            if not limit.expired():
                raise
            self.limit_hit = EpisodeEnd.TIMEOUT
            raise RequestProblem(
                f"the request was not answered within {self._limits.request_timeout_s:g} s; for more time raise "
                "--rollout.endpoint.request_timeout_s",
                status=504,
                code="timeout",
            ) from error
        except RequestError as error:
            raise RequestProblem(str(error), code="unservable", parameter="prompt") from error
        except Exception as error:
            self._break(error)
            problem = f"the engine failed: {error}"
            raise RequestProblem(problem, status=500, code="engine") from error
        self._check(completions, request.n)
        if request.greedy:
            # A draw without a choice is no action.
            return [
                replace(each, allowed_mass=np.zeros(len(each.token_ids), dtype=np.float32))
                for each in completions
            ]
        return completions

    async def _sampled(self, wanted: GenerationRequest) -> list[Completion]:
        """Have the engine answer, without a form that it cannot enforce where such may be left aside."""
        engine, grammar = self._context.engine, wanted.sampling.grammar
        try:
            completions = await engine.generate(wanted)
        except RequestError:
            if grammar is None or not self._limits.leaves_forms:
                raise
            self.num_ignored += 1
            free = replace(wanted, sampling=replace(wanted.sampling, grammar=None))
            return await engine.generate(free)
        if grammar is not None and any(each.allowed_mass is None for each in completions):
            # Drawn without the grammar, by an engine that knows of none: log-probs are right, the form is not held.
            if not self._limits.leaves_forms:
                raise RequestError(
                    f"{self.uid}: the engine answered a grammar without allowed_mass, so it enforces none",
                    code="engine/wrong-answer",
                )
            self.num_ignored += 1
        return completions

    def _check(self, completions: Sequence[Completion], count: int) -> None:
        if len(completions) != count or not all(len(each.token_ids) for each in completions):
            stops = [str(each.stop) for each in completions]
            if any(each.stop is Stop.ABORTED for each in completions):
                self._break(None)
            else:
                self._break(
                    RolloutError(
                        f"{self.uid}: the engine returned {len(completions)} completions for {count} seeds (stops: "
                        f"{stops}); expected as many, each of at least one token",
                        code="engine/wrong-answer",
                    )
                )
            raise RequestProblem("the engine gave the request up", status=500, code="engine")
        self._check_sampled(completions)

    def _check_sampled(self, completions: Sequence[Completion]) -> None:
        """Refuse an answer with a token that stands for images: nobody could tell it from an image's own."""
        if self.images is None:
            return
        never = self.images.tokens.never_sampled
        sampled = set().union(*(each.token_ids.tolist() for each in completions))
        if wrong := sampled.intersection(never):
            error = RolloutError(
                f"{self.uid}: the engine sampled token {min(wrong)}, which stands for an image; expected an engine "
                "that never samples it",
                code="engine/sampled-image",
            )
            self._break(error)
            raise RequestProblem(f"the engine failed: {error}", status=500, code="engine")

    def _break(self, error: Exception | None) -> None:
        if self.broken.done():
            return
        if error is None:
            self.broken.set_result(EpisodeEnd.ABORTED)
        else:
            self.broken.set_exception(error)

    def _keep(
        self, request: ModelRequest, read: ModelInput, completion: Completion, place: bytes
    ) -> SampledCall:
        renderer = self._rendering.renderer_of(request)
        answer = answer_of(request, read, completion, place, renderer, self.sampling)
        is_measured = self.sampling.logprobs or self._limits.measures_all
        if not is_measured and request.logprobs:
            # The run wants none, and a row has log-probs of all its tokens or of none.
            unmeasured = np.full(len(completion.token_ids), np.nan, dtype=np.float32)
            completion = replace(completion, logprobs=unmeasured)
        call = SampledCall(
            place=place,
            read=read,
            completion=completion,
            num_messages=len(request.messages),
            agent=request.agent,
            message=message_of(answer),
            stop=completion.stop,
        )
        self._tokens.write(len(completion.token_ids))
        self._calls.append(call)
        self._answers[place] = answer
        self._rendering.remember(request, call, answer.text)
        self.forks.add(request, call)
        if completion.stop is Stop.ABORTED:
            self._break(None)
        return call
