"""Fuzzed episodes behind the endpoint over tokenizers and templates of every kind: what was sampled trains, once."""

import asyncio
import json
import random
import re

import numpy as np
import pytest
from tests.libs.data.chat.zoo import KINDS, renderer_of

from rlhf_core.contracts import Completion, RolloutContext, SamplingParams, Stop, Task, Uid
from rlhf_plugin_endpoint.config import EndpointConfig
from rlhf_plugin_endpoint.conformance import CapturedRow, CapturedTrace, SampledAnswer
from rlhf_plugin_endpoint.conformance.checks import check_exact
from rlhf_plugin_endpoint.dialects.model_request import ModelRequest
from rlhf_plugin_endpoint.dialects.openai_chat import ShownFields, chat_reply, read_chat
from rlhf_plugin_endpoint.dialects.problems import RequestProblem
from rlhf_plugin_endpoint.dialects.request_images import RequestImages
from rlhf_plugin_endpoint.episode.identity import digest_of
from rlhf_plugin_endpoint.episode.rendering import Rendering
from rlhf_plugin_endpoint.episode.session import EpisodeSession
from rlhf_plugin_endpoint.settings import session_limits

TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
CALL = {"id": "call_0", "type": "function", "function": {"name": "add", "arguments": {"a": 1}}}
TEXTS = ["What is this?", "  so\n\n", "é 😀 漢字", "<|im_end|> <tool_call>", '{"a": 1}']


class RandomEngine:
    """Writes tokens at random, marks of calls and thoughts among them, and whole calls; and remembers them."""

    def __init__(self, name, choice):
        self.renderer = renderer_of(name)
        self.record = []
        self._choice = choice
        words = self.renderer.texts.words.ids
        self._words = words
        self._end = self.renderer.tokenizer.convert_tokens_to_ids(KINDS[name].end)
        self._plain = sorted(set(range(len(self.renderer.tokenizer))) - set(words.values()))
        self._marks = [
            token for word, token in words.items() if word not in self.renderer.turn_words
        ]

    async def generate(self, request):
        return [self._answer(request.prompt_ids) for _ in request.seeds]

    def _answer(self, prompt_ids):
        choice = self._choice
        kind = choice.randrange(4)
        if kind == 0:
            ids = choice.choices(self._plain, k=choice.randint(1, 12))
        elif kind == 1:
            ids = choice.choices(self._marks + self._plain[:40], k=choice.randint(1, 12))
        elif kind == 2 and "<tool_call>" in self._words:
            call = self.renderer.encode('{"name": "add", "arguments": {"a":1,  "b": false}}')
            ids = [self._words["<tool_call>"], *call, self._words["</tool_call>"]]
            ids *= choice.randint(1, 3)
        else:
            ids = self.renderer.encode(choice.choice(TEXTS))
        ended = choice.random() < 0.8
        ids = [*ids, self._end] if ended else ids
        first = sum(len(each.token_ids) for each in self.record)
        logprobs = tuple(-(first + place + 1.0) for place in range(len(ids)))
        stop = Stop.EOS if ended else Stop.LENGTH
        self.record.append(
            SampledAnswer(
                prompt_ids=prompt_ids,
                token_ids=tuple(ids),
                logprobs=logprobs,
                versions=(0,) * len(ids),
                stop=stop,
                temperature=1.0,
            )
        )
        return Completion(
            token_ids=np.array(ids, dtype=np.int32),
            logprobs=np.array(logprobs, dtype=np.float32),
            weight_version=np.zeros(len(ids), dtype=np.int32),
            stop=stop,
        )


def next_messages(choice, answer):
    """What an agent says after an answer: the results of its calls in any order, or a user's words."""
    calls = answer.get("tool_calls") or ()
    results = [
        {"role": "tool", "tool_call_id": call["id"], "content": choice.choice(TEXTS)}
        for call in calls
    ]
    choice.shuffle(results)
    return results or [{"role": "user", "content": choice.choice(TEXTS)}]


def as_sent_back(choice, answer):
    """The answer as a client may send it back."""
    sent = dict(answer)
    if choice.random() < 0.3:
        sent.pop("reasoning_content", None)
    if sent.get("content") is None and choice.random() < 0.5:
        sent["content"] = ""
    for call in sent.get("tool_calls") or ():
        if choice.random() < 0.5:
            values = json.loads(call["function"]["arguments"])
            call["function"] = {**call["function"], "arguments": json.dumps(values, indent=1)}
    return json.loads(json.dumps(sent))


async def play(name, seed):
    """Play an episode of an agent that asks, goes on, goes back and retries at random; return its two records."""
    choice = random.Random(f"{name} {seed}")
    engine = RandomEngine(name, choice)
    context = RolloutContext(
        engine=engine,
        renderer=engine.renderer,
        sampling=SamplingParams(max_new_tokens=64),
        max_length=100_000,
        seed=lambda sample, turn: turn,
    )
    uid = Uid(0, 0)
    limits = session_limits(EndpointConfig(agent="unused:unused"))
    session = EpisodeSession(uid, Task(uid=uid), context, limits)
    conversations = [[{"role": "user", "content": choice.choice(TEXTS)}]]
    tools = [TOOL] if choice.random() < 0.5 else []
    for number in range(choice.randint(2, 6)):
        messages = choice.choice(conversations[-2:])
        body = {"model": "policy", "messages": messages, "tools": tools}
        request = read_chat(
            json.loads(json.dumps(body)), RequestImages(None, ignores_overrides=False), max_n=4
        )
        keys = [f"{number}"] * (2 if choice.random() < 0.2 else 1)
        try:
            for key in keys:
                answers = await session.answers(
                    request, digest_of(key.encode()), key=key, is_retry=False
                )
        except RequestProblem as problem:
            # A template may refuse what an agent says, such as results of calls that it does not know.
            if problem.code != "template":
                raise
            continue
        answer = chat_reply(answers, "policy", ShownFields())["choices"][0]["message"]
        conversations.append(
            [*messages, as_sent_back(choice, answer), *next_messages(choice, answer)]
        )
    rows = (await session.end()).trajectories() if engine.record else []
    return engine.record, rows


@pytest.mark.parametrize("name", KINDS)
def test_exactly_what_was_sampled_trains(name):
    for seed in range(6):
        record, rows = asyncio.run(play(name, seed))
        captured = [
            CapturedRow(
                token_ids=tuple(row.token_ids.tolist()),
                mask=tuple(row.action_mask.tolist()),
                logprobs=tuple(row.rollout_logprobs.tolist()),
            )
            for row in rows
        ]

        check_exact(CapturedTrace(rows=tuple(captured), num_paths=len(rows)), record)


@pytest.mark.parametrize(
    ("messages", "tools", "said"),
    [
        (
            [{"role": "user", "content": "Sure?"}],
            [TOOL],
            "tool 1 (add): the chat template does not show the tool",
        ),
        (
            [
                {"role": "user", "content": "Sure?"},
                {"role": "assistant", "content": "", "tool_calls": [CALL]},
                {"role": "tool", "tool_call_id": "call_0", "content": "4"},
            ],
            [],
            "message 2 (assistant): the chat template does not show the call of add",
        ),
    ],
)
def test_a_request_that_the_template_shows_in_part_is_refused(messages, tools, said):
    rendering = Rendering(Task(uid=Uid(0, 0)), renderer_of("chatml"), None, keeps_thoughts=True)

    with pytest.raises(RequestProblem, match=re.escape(said)) as caught:
        rendering.input_of(ModelRequest(messages=tuple(messages), tools=tuple(tools)))

    assert caught.value.code == "template"
