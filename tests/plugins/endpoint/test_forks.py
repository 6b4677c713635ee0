"""Forks are warned of once, and the warning says what the client did to cause them."""

import logging
from dataclasses import replace
from types import SimpleNamespace

import httpx
import numpy as np
import pytest
from tests.libs.data.chat.zoo import renderer_of

from rlhf_core.contracts import Completion, Stop, Task, Uid
from rlhf_plugin_endpoint.episode.forks import ForkCause, Forks
from rlhf_plugin_endpoint.fork_watch import ADVICE, FEWEST_TURNS, ForkWatch
from rlhf_testing.fakes import EOS_ID, FakeEngine, FakeRenderer

WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
OTHER = {"type": "function", "function": {"name": "other", "parameters": {"type": "object"}}}
CALLS = '<tool_call>{"name": "weather", "arguments": {}}</tool_call>' * 2


def ask(context, messages, tools=()):
    """Return the policy's answer to plain HTTP."""
    with httpx.Client(trust_env=False, timeout=60.0) as client:
        reply = client.post(
            f"{context.base_url}/chat/completions",
            json={"model": context.model, "messages": messages, "tools": list(tools)},
            headers={"authorization": f"Bearer {context.api_key}"},
        )
    assert reply.status_code == 200, reply.text
    return reply.json()["choices"][0]["message"]


def as_it_was(messages):
    return messages


def with_one_id(messages):
    """All calls of an answer and their results have one id."""
    changed = []
    for each in messages:
        if each.get("tool_calls"):
            each = {**each, "tool_calls": [{**call, "id": "one"} for call in each["tool_calls"]]}
        elif each["role"] == "tool":
            each = {**each, "tool_call_id": "one"}
        changed.append(each)
    return changed


def with_other_words(messages):
    return [
        {**each, "content": "Well then."} if each["role"] == "assistant" else each
        for each in messages
    ]


def without_the_first(messages):
    return messages[:1] + messages[-2:]


def with_a_clock(messages):
    return [{"role": "system", "content": f"It is {len(messages)} o'clock"}, *messages[1:]]


HABITS = {
    ForkCause.CALL_IDS: (with_one_id, CALLS),
    ForkCause.ANSWER: (with_other_words, "Yes."),
    ForkCause.DROPPED: (without_the_first, "Yes, TURN."),
    ForkCause.OTHER: (with_a_clock, "Yes."),
}


def talk(change, *, turns=5, tools_of=lambda turn: [WEATHER]):
    """An agent that sends its conversation back as ``change`` makes it."""

    def agent(context):
        messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "0"}]
        for turn in range(turns):
            answer = ask(context, messages, tools_of(turn))
            messages.append(answer)
            messages += [
                {"role": "tool", "tool_call_id": call["id"], "content": "20 degrees"}
                for call in answer.get("tool_calls") or ()
            ]
            messages.append({"role": "user", "content": str(turn + 1)})
            messages = change(messages)
        return 1.0

    return agent


@pytest.fixture
def warnings_of(play, caplog):
    """Play four episodes of an agent; return their rows and what was warned of."""

    def run(agent, text):
        play.engine = FakeEngine(lambda request, index: text.replace("TURN", str(request.turn)))
        with caplog.at_level(logging.WARNING, logger="rlhf_plugin_endpoint"):
            rows = play(
                agent,
                samples=range(4),
                context=play.context(max_length=100_000, max_new_tokens=500),
            )
        return rows, [each.getMessage() for each in caplog.records]

    return run


@pytest.mark.parametrize("cause", HABITS)
def test_the_cause_of_forks_is_named_once(warnings_of, cause):
    change, text = HABITS[cause]

    rows, warnings = warnings_of(talk(change), text)

    assert sum(row.metrics["graph/forks"] for row in rows) > 4
    (warning,) = warnings
    assert f"the client {cause} (first in episode" in warning
    assert ADVICE[cause] in warning


def test_tools_that_change_are_named(warnings_of):
    changing = talk(as_it_was, tools_of=lambda turn: [WEATHER] if turn % 2 else [OTHER, WEATHER])

    _, (warning,) = warnings_of(changing, "Yes.")

    assert f"the client {ForkCause.TOOLS} (first in episode" in warning


def test_a_conversation_that_is_sent_back_as_it_was_is_not_warned_of(warnings_of):
    rows, warnings = warnings_of(talk(as_it_was), CALLS)

    assert {row.metrics["graph/forks"] for row in rows} == {0.0}
    assert not warnings


def test_conversations_of_their_own_fork_nothing(warnings_of):
    """Sub-agents with the same system prompt and examples, and equal questions side by side."""
    examples = [
        {"role": "system", "content": "Add."},
        {"role": "user", "content": "1 + 1"},
        {"role": "assistant", "content": "2"},
    ]

    def agent(context):
        for turn in range(6):
            ask(context, [*examples, {"role": "user", "content": f"{turn // 2} + 1"}])
        return 1.0

    _, warnings = warnings_of(agent, "Yes.")

    assert not warnings


def forks(message, asked):
    """Forks of an episode in which one answer came back otherwise."""
    found = Forks(FakeRenderer())
    said = ({"role": "user", "content": "?"},)
    request = SimpleNamespace(prompt=None, messages=said, tools=(), template_kwargs=None)
    completion = SimpleNamespace(token_ids=np.array([EOS_ID]))
    found.add(request, SimpleNamespace(message=message, completion=completion, stop=Stop.EOS))
    again = SimpleNamespace(prompt=None, messages=(*said, *asked), tools=(), template_kwargs=None)
    found.look(again, SimpleNamespace(parent=None))
    return found


ANSWER = {"role": "assistant", "content": "Yes.", "reasoning_content": "Hm."}
MORE = {"role": "user", "content": "Sure?"}


@pytest.mark.parametrize(
    ("asked", "cause"),
    [
        (({"role": "assistant", "content": "Yes."}, MORE), ForkCause.THOUGHT),
        ((ANSWER, MORE), ForkCause.TEMPLATE),
        (({**ANSWER, "content": "No."}, MORE), ForkCause.ANSWER),
        ((MORE,), None),
    ],
)
def test_causes_that_the_template_has_a_part_in(asked, cause):
    assert list(forks(ANSWER, asked).causes) == [cause] * (cause is not None)


def test_few_forks_are_not_warned_of(caplog):
    watch = ForkWatch()
    forked = forks(ANSWER, ({**ANSWER, "content": "No."}, MORE))

    watch.add(Uid(0, 0), forked, FEWEST_TURNS - 1)
    watch.add(Uid(0, 1), forked, 1)

    assert not caplog.records


def test_every_cause_has_advice():
    assert set(ADVICE) == set(ForkCause)


class SpecialEngine:
    """Writes the same text in each answer, parts of which are special tokens."""

    def __init__(self, text):
        self.renderer = renderer_of("chatml")
        special = self.renderer.tokenizer(text, add_special_tokens=False)
        self._ids = np.array(special["input_ids"], dtype=np.int32)

    async def generate(self, request):
        ended = int(self._ids[-1]) in self.renderer.tokenizer.all_special_ids
        one = Completion(
            token_ids=self._ids,
            logprobs=np.zeros(len(self._ids), dtype=np.float32),
            weight_version=np.zeros(len(self._ids), dtype=np.int32),
            stop=Stop.EOS if ended else Stop.LENGTH,
        )
        return [one for _ in request.seeds]


@pytest.fixture
def warned_of_special(play, caplog):
    """Play four episodes of an agent that changes nothing; return the number of forks and what was warned of."""

    def run(text, **options):
        engine = SpecialEngine(text)
        play.task = Task(uid=Uid(0, 3), messages=({"role": "user", "content": "question"},))
        context = replace(play.context(max_length=100_000), engine=engine, renderer=engine.renderer)
        with caplog.at_level(logging.WARNING, logger="rlhf_plugin_endpoint"):
            agent = talk(as_it_was, tools_of=lambda turn: [])
            rows = play(agent, samples=range(4), context=context, **options)
        num_forks = sum(row.metrics["graph/forks"] for row in rows)
        return num_forks, [each.getMessage() for each in caplog.records]

    return run


@pytest.mark.parametrize("text", ["well<|endoftext|> then", "well then<|endoftext|>"])
def test_special_tokens_of_the_policy_are_named(warned_of_special, text):
    """A random model writes them. The client was told that it changed nothing, and to keep thoughts."""
    num_forks, (warning,) = warned_of_special(text)

    assert num_forks > 4
    assert f"the client {ForkCause.SPECIAL} (first in episode" in warning
    assert "'<|endoftext|>'" in warning


def test_their_tokens_are_gone_on_with_where_the_advice_is_taken(warned_of_special):
    assert warned_of_special("well<|endoftext|> then", thoughts="keep") == (0, [])


def test_the_end_that_the_template_writes_forks_nothing(warned_of_special):
    assert warned_of_special("well then<|im_end|>") == (0, [])
