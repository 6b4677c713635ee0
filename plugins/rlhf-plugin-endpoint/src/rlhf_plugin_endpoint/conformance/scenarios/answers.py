"""Answers: what comes back is what was sampled, and the next turn goes on with its tokens."""

from __future__ import annotations

from typing import Any

from ..adapter import EndpointUnderTest
from ..chat_format import merged
from ..checks import expect
from .scene import promise, scene, user


@promise("an answer trains as it was sampled")
def one_turn(endpoint: EndpointUnderTest) -> None:
    with scene(endpoint, lambda prompt, index: "four") as play:
        message = play.client.chat([user("2+2?")])
        expect(message["content"] == "four", f"expected the content 'four', got {message}")
        play.check(paths=1)


@promise("the next turn goes on with the first")
def two_turns(endpoint: EndpointUnderTest) -> None:
    with scene(endpoint, lambda prompt, index: f"answer {prompt.count('[assistant]')}") as play:
        messages = [user("hello")]
        messages.append(play.client.chat(messages))
        play.client.chat([*messages, user("and then?")])
        play.check(paths=1)


@promise("30 turns are one path")
def many_turns(endpoint: EndpointUnderTest) -> None:
    with scene(endpoint, lambda prompt, index: f"turn {prompt.count('[assistant]')}") as play:
        messages: list[dict[str, Any]] = []
        for turn in range(30):
            messages.append(user(f"question {turn}"))
            messages.append(play.client.chat(messages))
        play.check(paths=1)


@promise("tokens that encoding would not give again are read as they were sampled")
def other_encoding(endpoint: EndpointUnderTest) -> None:
    with scene(endpoint, lambda prompt, index: merged("pairs of letters")) as play:
        messages = [user("write")]
        messages.append(play.client.chat(messages))
        expect(
            messages[-1]["content"] == "pairs of letters",
            f"expected the decoded answer, got {messages[-1]}",
        )
        play.client.chat([*messages, user("again")])
        play.check(paths=1)


@promise("every character comes back")
def unicode(endpoint: EndpointUnderTest) -> None:
    text = "naïve e\u0301 \U0001f9d1\u200d\U0001f680 \u202eabc\u202c 漢字\u00a0\n\ttail"
    with scene(endpoint, lambda prompt, index: text) as play:
        messages = [user(text)]
        messages.append(play.client.chat(messages))
        expect(
            messages[-1]["content"] == text, f"the answer came back as {messages[-1]['content']!r}"
        )
        play.client.chat([*messages, user("more")])
        play.check(paths=1)


@promise("an answer that the client trimmed is gone on with")
def white_space(endpoint: EndpointUnderTest) -> None:
    with scene(endpoint, lambda prompt, index: "  spaces around \n") as play:
        messages = [user("write")]
        answer = play.client.chat(messages)
        trimmed = {"role": "assistant", "content": answer["content"].strip()}
        play.client.chat([*messages, trimmed, user("again")])
        play.check(paths=1)


@promise("contents as parts, and fields of the client's own, are the same message")
def content_parts(endpoint: EndpointUnderTest) -> None:
    with scene(endpoint, lambda prompt, index: "yes") as play:
        answer = play.client.chat([user("ready?")])
        rewritten: list[dict[str, Any]] = [
            {"role": "user", "content": [{"type": "text", "text": "ready?"}]},
            {
                "content": [{"type": "text", "text": answer["content"]}],
                "role": "assistant",
                "name": "bot",
                "refusal": None,
                "annotations": [],
            },
            user("go"),
        ]
        play.client.chat(rewritten)
        play.check(paths=1)


@promise("an answer that was cut is gone on with")
def length(endpoint: EndpointUnderTest) -> None:
    with scene(endpoint, lambda prompt, index: "a long answer that is cut") as play:
        body = {"model": play.client.model, "messages": [user("go on")], "max_tokens": 6}
        choice = play.client.ask("/v1/chat/completions", body)["choices"][0]
        expect(
            choice["finish_reason"] == "length",
            f"finish_reason is {choice['finish_reason']!r}; expected 'length'",
        )
        play.client.chat([user("go on"), choice["message"], user("more")])
        play.check(paths=1)


@promise("the client reads up to its stop string, and what was sampled trains")
def stop_string(endpoint: EndpointUnderTest) -> None:
    with scene(endpoint, lambda prompt, index: "one. two. three.") as play:
        message = play.client.chat([user("count")], stop=["two"])
        expect(
            message["content"] == "one. ",
            f"expected the answer before the stop string, 'one. ', got {message['content']!r}",
        )
        play.check()


@promise("all of n answers train")
def several_answers(endpoint: EndpointUnderTest) -> None:
    with scene(endpoint, lambda prompt, index: f"answer {index}") as play:
        body = {"model": play.client.model, "messages": [user("guess")], "n": 3}
        choices = play.client.ask("/v1/chat/completions", body)["choices"]
        texts = sorted(choice["message"]["content"] for choice in choices)
        expect(texts == ["answer 0", "answer 1", "answer 2"], f"expected 3 answers, got {texts}")
        play.check()


@promise("a stream has the same answer")
def stream(endpoint: EndpointUnderTest) -> None:
    text = "a streamed answer, long enough for several pieces. " * 12
    with scene(endpoint, lambda prompt, index: text) as play:
        body = {"model": play.client.model, "messages": [user("talk")], "stream": True}
        answer = play.client.post("/v1/chat/completions", body)
        deltas = [event["choices"][0]["delta"] for event in answer.events() if event["choices"]]
        got = "".join(delta.get("content") or "" for delta in deltas)
        expect(got == text, f"the pieces of the stream give {got[:80]!r}; expected {text[:80]!r}")
        play.client.chat([user("talk"), {"role": "assistant", "content": got}, user("more")])
        play.check(paths=1)


@promise("a thought that the client leaves out forks, and both paths train")
def thoughts(endpoint: EndpointUnderTest) -> None:
    def script(prompt: str, index: int) -> str:
        return "<think>first this, then that</think>done"

    with scene(endpoint, script) as play:
        message = play.client.chat([user("think")])
        expect(message["content"] == "done", f"expected the content 'done', got {message}")
        bare = {"role": "assistant", "content": message["content"]}
        play.client.chat([user("think"), bare, user("again")])
        play.check(paths=2)
