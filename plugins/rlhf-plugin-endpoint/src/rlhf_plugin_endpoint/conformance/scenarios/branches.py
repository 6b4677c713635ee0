"""Branches: several conversations in one episode, all of which train."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ..adapter import EndpointUnderTest
from ..checks import expect
from .scene import WEATHER, call, promise, result_of, scene, user


def _system(text: str) -> dict[str, Any]:
    return {"role": "system", "content": text}


@promise("equal requests at once are several")
def parallel(endpoint: EndpointUnderTest) -> None:
    """Equal requests at the same time are several questions, not retries."""
    with scene(endpoint, lambda prompt, index: f"idea {index}", delay_s=0.5) as play:
        with ThreadPoolExecutor(4) as threads:
            asked = [threads.submit(play.client.chat, [user("an idea?")]) for _ in range(4)]
            texts = sorted(each.result()["content"] for each in asked)
        expect(
            texts == [f"idea {index}" for index in range(4)],
            f"expected 4 different answers, got {texts}",
        )
        play.check()


@promise("two ways on from one answer, which trains once")
def two_continuations(endpoint: EndpointUnderTest) -> None:
    with scene(endpoint, lambda prompt, index: "an answer") as play:
        messages = [user("begin")]
        messages.append(play.client.chat(messages))
        play.client.chat([*messages, user("left")])
        play.client.chat([*messages, user("right")])
        play.check(paths=2)


@promise("a changed history forks")
def edited_history(endpoint: EndpointUnderTest) -> None:
    with scene(endpoint, lambda prompt, index: f"seen {prompt.count('[user]')}") as play:
        messages = [user("a long log of things")]
        messages.append(play.client.chat(messages))
        messages += [user("next")]
        messages.append(play.client.chat(messages))
        messages[0] = user("a long log [cut]")
        play.client.chat([*messages, user("last")])
        play.check(paths=2)


@promise("both halves train when the system prompt changes")
def swapped_system(endpoint: EndpointUnderTest) -> None:
    """A coding agent's system prompt changes in the middle of its work."""

    def script(prompt: str, index: int) -> str:
        return call("weather", '{"city": "Bern"}')

    with scene(endpoint, script) as play:
        messages = [_system("short rules"), user("work")]
        for turn in range(6):
            if turn == 3:
                messages[0] = _system("longer rules")
            answer = play.client.chat(messages, tools=[WEATHER])
            messages += [answer, result_of(answer["tool_calls"][0], "mild")]
        play.check(paths=2)


@promise("a sub-agent without tools trains")
def sub_agent(endpoint: EndpointUnderTest) -> None:
    def script(prompt: str, index: int) -> str:
        return "sub-result" if "researcher" in prompt else "lead says so"

    with scene(endpoint, script) as play:
        lead = [_system("you lead"), user("task")]
        lead.append(play.client.chat(lead, tools=[WEATHER]))
        helper = [_system("you are a researcher"), user("sub-task")]
        helper.append(play.client.chat(helper))
        play.client.chat([*helper, user("deeper")])
        play.client.chat([*lead, user("sub-result")], tools=[WEATHER])
        play.check(paths=2)


@promise("a summary and what follows train")
def compaction(endpoint: EndpointUnderTest) -> None:
    """The history is replaced by a summary that the policy wrote itself; the summary trains too."""

    def script(prompt: str, index: int) -> str:
        return "summary of all" if "[user]summarize|" in prompt else "work"

    with scene(endpoint, script) as play:
        messages = [user("job")]
        messages.append(play.client.chat(messages))
        summary = play.client.chat([*messages, user("summarize")])["content"]
        messages = [user(f"job. so far: {summary}")]
        messages.append(play.client.chat(messages))
        play.client.chat([*messages, user("finish")])
        play.check(paths=2)
