"""Retries: a request that is sent again is one request."""

from __future__ import annotations

from ..adapter import EndpointUnderTest
from ..chat_format import KitRenderer
from ..checks import check_exact, expect
from ..client import TIMEOUT_S
from ..policy import SampledAnswer
from .scene import held_scene, promise, scene, user

WORK_S = 0.5
"""Seconds for an endpoint to find that a client has gone, before the policy answers."""


@promise("a repeated key gets the same answer, which trains once")
def idempotency_key(endpoint: EndpointUnderTest) -> None:
    with scene(endpoint, lambda prompt, index: f"draw {index}") as play:
        key = {"idempotency-key": "call-1"}
        first = play.client.chat([user("draw")], key)
        second = play.client.chat([user("draw")], key)
        expect(first["content"] == second["content"], "a repeated key got another answer")
        play.check(paths=1)


@promise("of a lost request and its retry, the answer that was read trains alone")
def retry_after_disconnect(endpoint: EndpointUnderTest) -> None:
    with held_scene(endpoint, lambda prompt, index: f"draw {index}", delay_s=WORK_S) as play:
        body = {"model": play.client.model, "messages": [user("draw")]}
        lost = play.client.send("/v1/chat/completions", body)
        play.policy.started.wait(TIMEOUT_S)
        lost.close()
        play.policy.let_go.set()
        again = play.client.chat([user("draw")], {"x-stainless-retry-count": "1"})
        trace = play.episode.finish()
        trained = [each for each in play.policy.record if again["content"] in _text(each)]
        expect(len(trained) == 1, f"the answer {again['content']!r} was never sampled, or twice")
        check_exact(trace, trained)


@promise("an answer that nobody read does not train")
def abandoned(endpoint: EndpointUnderTest) -> None:
    with held_scene(endpoint, lambda prompt, index: "an answer", delay_s=WORK_S) as play:
        body = {"model": play.client.model, "messages": [user("never mind")]}
        lost = play.client.send("/v1/chat/completions", body)
        play.policy.started.wait(TIMEOUT_S)
        lost.close()
        play.policy.let_go.set()
        play.client.chat([user("something else")])
        trace = play.episode.finish()
        read = [each for each in play.policy.record if "else" in _text(each)]
        check_exact(trace, read)


def _text(answer: SampledAnswer) -> str:
    """Return what an answer's request and the answer itself say."""
    return KitRenderer().decode([*answer.prompt_ids, *answer.token_ids])
