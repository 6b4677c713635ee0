"""Answers of a form that a client demands: the grammar that the engine gets, and what of the answer trains."""

import importlib.util
import json
import random
from dataclasses import replace

import httpx
import numpy as np
import pytest
from tests.libs.data.chat.zoo import renderer_of

from rlhf_core import RequestError, RolloutError
from rlhf_plugin_endpoint.dialects.answer_form import AnswerForm, form_of
from rlhf_plugin_endpoint.dialects.problems import RequestProblem
from rlhf_plugin_endpoint.episode.forms import call_syntax, grammar_of
from rlhf_testing.errors import has_code
from rlhf_testing.fakes import FakeEngine, FakeRenderer

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
TOOL = {"type": "function", "function": {"name": "count", "parameters": SCHEMA}}
OTHER = {"type": "function", "function": {"name": "stop", "parameters": {"type": "object"}}}
CALL = '<tool_call>{"name": "count", "arguments": {"n": 3}}</tool_call>'
SAID = [{"role": "user", "content": "how many?"}]


class FormEngine(FakeEngine):
    """Writes what the grammar asks for, as its script has it; the grammar leaves a share of the probability."""

    def __init__(self, text, mass=1.0):
        super().__init__(lambda request, index: text)
        self.mass = mass

    async def generate(self, request):
        found = await super().generate(request)
        if request.sampling.grammar is None:
            return found
        return [
            replace(one, allowed_mass=np.full(len(one.token_ids), self.mass, dtype=np.float32))
            for one in found
        ]


class FreeEngine(FakeEngine):
    """Enforces no grammar."""

    async def generate(self, request):
        if request.sampling.grammar is not None:
            raise RequestError("this engine enforces no form")
        return await super().generate(request)


def post(context, body, route="/v1/chat/completions"):
    with httpx.Client(trust_env=False, timeout=60.0) as client:
        return client.post(
            f"{context.root_url}{route}",
            json={"model": context.model, **body},
            headers={"authorization": f"Bearer {context.api_key}"},
        )


@pytest.fixture
def ask(play):
    """Ask once for a form, behind a free question; return the reply, the row of it and the engine's last request."""

    def run(body, route="/v1/chat/completions", **options):
        replies = []

        def agent(context):
            post(context, {"messages": SAID})
            replies.append(post(context, body, route))
            return 1.0

        rows = play(agent, **options)
        return replies[0], rows, play.engine.requests[-1]

    return run


def test_a_schema_is_the_grammar_of_the_answer(play, ask):
    play.engine = FormEngine('{"n": 3}')
    form = {"type": "json_schema", "json_schema": {"name": "N", "schema": SCHEMA, "strict": True}}

    reply, _, request = ask({"messages": SAID, "response_format": form})

    assert json.loads(reply.json()["choices"][0]["message"]["content"]) == {"n": 3}
    assert request.sampling.grammar == f"start: answer\nanswer: %json {json.dumps(SCHEMA)}"
    assert play.engine.requests[0].sampling.grammar is None


@pytest.mark.parametrize(
    ("route", "body"),
    [
        ("/v1/chat/completions", {"messages": SAID, "response_format": {"type": "json_object"}}),
        ("/v1/responses", {"input": "how?", "text": {"format": {"type": "json_object"}}}),
    ],
)
def test_any_object_is_a_form_in_each_dialect(play, ask, route, body):
    play.engine = FormEngine("{}")

    reply, _, request = ask(body, route)

    assert reply.status_code == 200, reply.text
    assert request.sampling.grammar == 'start: answer\nanswer: %json {"type": "object"}'


FORCED = [
    ("/v1/chat/completions", {"messages": SAID, "tools": [TOOL, OTHER]}, "required"),
    (
        "/v1/chat/completions",
        {"messages": SAID, "tools": [TOOL, OTHER]},
        {"type": "function", "function": {"name": "count"}},
    ),
    (
        "/v1/responses",
        {
            "input": "how many?",
            "tools": [{"type": "function", "name": "count", "parameters": SCHEMA}],
        },
        {"type": "function", "name": "count"},
    ),
    (
        "/v1/messages",
        {"messages": SAID, "max_tokens": 99, "tools": [{"name": "count", "input_schema": SCHEMA}]},
        {"type": "tool", "name": "count"},
    ),
    (
        "/v1/messages",
        {"messages": SAID, "max_tokens": 99, "tools": [{"name": "count", "input_schema": SCHEMA}]},
        {"type": "any"},
    ),
]


@pytest.mark.parametrize(("route", "body", "choice"), FORCED)
def test_a_forced_tool_is_a_grammar_of_calls(play, ask, route, body, choice):
    play.engine = FormEngine(CALL)

    reply, _, request = ask({**body, "tool_choice": choice}, route)

    assert reply.status_code == 200, reply.text
    grammar = request.sampling.grammar
    assert '"<tool_call>{\\"name\\": \\"" "count" ' in grammar
    assert ('"stop"' in grammar) == (choice == "required")
    assert '"count"' in reply.text or "count" in reply.text


def test_where_tools_may_be_called_an_answer_of_a_form_may_be_a_call(play, ask):
    play.engine = FormEngine(CALL)
    form = {"type": "json_schema", "json_schema": {"name": "N", "schema": SCHEMA}}

    _, _, request = ask({"messages": SAID, "tools": [TOOL], "response_format": form})

    assert request.sampling.grammar.startswith("start: answer | call0\n")


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ({"tool_choice": "required"}, "tool_choice asks for a tool, and tools has none"),
        (
            {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "f"}}},
            "tool_choice asks for the tool 'f', and tools has 'count'",
        ),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "N"}}}, "an object"),
        ({"response_format": {"type": "grammar"}}, "answers are text"),
    ],
)
def test_a_form_that_is_none_is_refused(play, ask, body, problem):
    play.engine = FormEngine("{}")

    reply, _, _ = ask({"messages": SAID, **body})

    assert reply.status_code == 400
    assert problem in reply.json()["error"]["message"]


def test_a_form_that_the_engine_does_not_enforce_is_refused_or_left_aside(play, ask):
    body = {"messages": SAID, "response_format": {"type": "json_object"}}
    play.engine = FreeEngine()

    refused, _, _ = ask(body)
    ignored, rows, _ = ask(body, overrides="ignore")

    assert refused.status_code == 400
    assert "this engine enforces no form" in refused.json()["error"]["message"]
    assert ignored.status_code == 200
    assert rows[0].metrics["endpoint/ignored_fields"] == 1.0


def test_a_form_is_refused_where_the_engine_ignores_grammars_or_left_aside(play, ask):
    play.engine = FakeEngine()
    body = {"messages": SAID, "response_format": {"type": "json_object"}}

    refused, _, _ = ask(body)
    ignored, rows, _ = ask(body, overrides="ignore")

    assert refused.status_code == 400
    assert "without allowed_mass, so it enforces none" in refused.json()["error"]["message"]
    assert ignored.status_code == 200
    assert rows[0].metrics["endpoint/ignored_fields"] == 1.0


def actions(play, rows):
    """The policy's texts that train."""
    return [play.renderer.decode(row.token_ids[row.action_mask]) for row in rows]


def test_tokens_at_which_the_grammar_changed_nothing_are_actions(play, ask):
    play.engine = FormEngine('{"n": 3}', mass=0.9999)
    body = {"messages": [*SAID, *SAID], "response_format": {"type": "json_object"}}

    _, rows, _ = ask(body)

    assert '{"n": 3}' in actions(play, rows)
    assert rows[0].metrics["endpoint/unlearned_tokens"] == 0.0


def test_tokens_that_the_grammar_decided_are_read_and_are_no_actions(play):
    play.engine = FormEngine('{"n": 3}', mass=0.5)

    def agent(context):
        said = [*SAID]
        form = {"type": "json_object"}
        reply = post(context, {"messages": said, "response_format": form}).json()
        said += [reply["choices"][0]["message"], {"role": "user", "content": "sure?"}]
        post(context, {"messages": said})
        return 1.0

    (row,) = play(agent)

    text = play.renderer.decode(row.token_ids)
    assert text.count('{"n": 3}') == 2
    assert actions(play, [row]) == ['{"n": 3}']
    assert len(row.turns) == 1
    assert row.metrics["endpoint/unlearned_tokens"] == len('{"n": 3}') + 1
    assert row.metrics["turns"] == 2.0
    assert row.total_reward == 1.0


def test_temperature_0_is_obeyed_and_trains_nothing(play, ask):
    _, rows, request = ask({"messages": [*SAID, *SAID], "temperature": 0})

    assert request.sampling.temperature == 0.0
    assert play.engine.requests[0].sampling.temperature == 1.0
    assert len(rows) == 1


def test_an_episode_that_left_the_policy_no_choice_is_an_error_with_the_cause(play):
    def agent(context):
        post(context, {"messages": SAID, "temperature": 0})
        return 1.0

    with pytest.raises(
        RolloutError, match="decided by temperature 0", check=has_code("agent/failed")
    ):
        play(agent)


def test_a_thought_that_the_prompt_has_begun_has_no_form():
    renderer = renderer_of("opened thought")
    prompt = renderer.render(SAID)

    with pytest.raises(RequestProblem, match="begins the answer with a thought"):
        grammar_of(AnswerForm(schema=SCHEMA), renderer, prompt)


STRICT = {"type": "function", "function": {"name": "count", "parameters": SCHEMA, "strict": True}}


def test_a_strict_tool_that_is_not_forced_is_a_form_of_calls_alone():
    form = form_of({"tools": [STRICT, OTHER], "tool_choice": "auto"}, [TOOL, OTHER])

    assert form.free
    assert not form.once
    assert form_of({"tools": [STRICT], "parallel_tool_calls": False}, [TOOL]).once
    assert [call["function"]["parameters"] for call in form.calls] == [SCHEMA, {"type": "object"}]
    assert form_of({"tools": [TOOL, OTHER]}, [TOOL, OTHER]) is None
    assert form_of({"tools": [STRICT], "tool_choice": "none"}, []) is None
    flat = {"type": "function", "name": "count", "parameters": SCHEMA, "strict": True}
    assert form_of({"tools": [flat]}, [TOOL]) == AnswerForm(calls=(TOOL,), free=True)


def test_a_strict_tool_is_refused_where_nothing_tells_a_call_or_left_aside(play, ask):
    """The stand-in's calls begin with text."""
    play.engine = FormEngine("no call")

    refused, _, _ = ask({"messages": SAID, "tools": [STRICT]})
    ignored, rows, request = ask({"messages": SAID, "tools": [STRICT]}, overrides="ignore")

    assert refused.status_code == 400
    assert refused.json()["error"]["code"] == "form_unsupported"
    assert "no control word of its own" in refused.json()["error"]["message"]
    assert ignored.status_code == 200
    assert request.sampling.grammar is None
    assert rows[0].metrics["endpoint/ignored_fields"] == 1.0


@pytest.mark.skipif(importlib.util.find_spec("llguidance") is None, reason="needs llguidance")
@pytest.mark.parametrize("kind", ["hermes", "thinking"])
def test_an_answer_is_free_until_it_calls_a_strict_tool(kind):
    from llguidance import LLMatcher
    from llguidance.hf import from_tokenizer

    renderer = renderer_of(kind)
    prompt = renderer.render(SAID, [TOOL])
    grammars = {
        once: LLMatcher.grammar_from_lark(
            grammar_of(AnswerForm(calls=(TOOL, OTHER), free=True, once=once), renderer, prompt)
        )
        for once in (False, True)
    }
    tokenizer = from_tokenizer(renderer.tokenizer)

    def written(text, once=False):
        """Return how many tokens are allowed at the last place, of all, or None where the text is not."""
        matcher = LLMatcher(tokenizer, grammars[once], log_level=0)
        for token in renderer.tokenizer.encode(text, add_special_tokens=False):
            bits = np.unpackbits(
                np.frombuffer(matcher.compute_bitmask(), dtype=np.uint8), bitorder="little"
            )
            if not bits[token]:
                return None
            matcher.consume_token(token)
        return int(bits[: tokenizer.vocab_size].sum())

    asked = renderer.render([SAID[0]], [TOOL])
    called = {"role": "assistant", "content": "", "tool_calls": [_call("count", {"n": 3})]}
    shown = renderer.render([SAID[0], called], [TOOL])[len(asked) :]
    call = renderer.decode(shown, skip_special_tokens=False)
    call = call[call.index("<tool_call>") : call.index("</tool_call>") + len("</tool_call>")]
    assert written("three") == tokenizer.vocab_size
    assert written(f"so {call} then {call} done") == tokenizer.vocab_size
    assert written(f"so {call} then", once=True) == tokenizer.vocab_size - 1
    assert written(f"so {call} then {call}", once=True) is None
    assert written(f"so {call.replace('3', 'true')}") is None
    assert written(f"so {call.replace('count', 'other')}") is None


def _call(name, arguments):
    return {"id": "c", "type": "function", "function": {"name": name, "arguments": arguments}}


def test_a_template_without_calls_refuses_a_forced_tool():
    assert call_syntax(renderer_of("chatml")) is None
    assert call_syntax(FakeRenderer()) is not None


@pytest.mark.skipif(importlib.util.find_spec("llguidance") is None, reason="needs llguidance")
@pytest.mark.parametrize("kind", ["hermes", "thinking", "mistral"])
def test_whatever_is_drawn_below_the_grammar_is_a_call(kind):
    from llguidance import LLMatcher
    from llguidance.hf import from_tokenizer

    renderer, draw = renderer_of(kind), random.Random(38)
    schema = {
        "type": "object",
        "properties": {"n": {"enum": [1, 22]}, "s": {"enum": ["a b", "c"]}},
        "required": ["n", "s"],
        "additionalProperties": False,
    }
    tool = {"type": "function", "function": {"name": "count", "parameters": schema}}
    nothing = {"type": "object", "properties": {}, "additionalProperties": False}
    other = {"type": "function", "function": {"name": "stop", "parameters": nothing}}
    prompt = renderer.render(SAID, [tool])
    grammar = LLMatcher.grammar_from_lark(
        grammar_of(AnswerForm(calls=(tool, other)), renderer, prompt)
    )
    tokenizer = from_tokenizer(renderer.tokenizer)
    for _ in range(5):
        matcher, written = LLMatcher(tokenizer, grammar), []
        while not matcher.is_accepting() and len(written) < 200:
            mask = np.frombuffer(matcher.compute_bitmask(), dtype=np.uint8)
            allowed = np.flatnonzero(np.unpackbits(mask, bitorder="little"))
            written.append(int(draw.choice(allowed.tolist())))
            assert matcher.consume_token(written[-1])
        answer = renderer.parse(written, prompt_ids=prompt, tools=[tool])
        assert len(answer.tool_calls) == 1, renderer.decode(written, skip_special_tokens=False)
        (call,) = answer.tool_calls
        assert call.name in ("count", "stop")
        assert not answer.malformed
