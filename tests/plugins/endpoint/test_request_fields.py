"""Every field of a request is obeyed, says nothing about the answer, or is refused by name."""

import json
import urllib.error
import urllib.request
from dataclasses import replace

import pytest

from rlhf_core.errors import DataError
from rlhf_testing.fakes import FakeRenderer

SAID = [{"role": "user", "content": "hi"}]
BODIES = {
    "/chat/completions": {"messages": SAID},
    "/completions": {"prompt": "hi"},
    "/responses": {"input": "hi"},
    "/messages": {"messages": SAID, "max_tokens": 8},
}


class Template(FakeRenderer):
    """A format that reads two variables, and shows them first."""

    def __init__(self, given=None):
        super().__init__()
        self._given = given or {}

    def with_template_kwargs(self, kwargs):
        for name in kwargs:
            if name not in ("enable_thinking", "reasoning_effort"):
                raise DataError(
                    f"chat_template_kwargs: {name!r} would change nothing; it reads enable_thinking"
                )
        return Template({**self._given, **kwargs})

    def render(self, messages, tools=()):
        shown = f"[{json.dumps(self._given)}]" if self._given else ""
        return [*self.encode(shown), *super().render(messages, tools)]


def post(context, route, **body):
    """Status and object of a reply."""
    request = urllib.request.Request(
        context.base_url + route,
        data=json.dumps({"model": context.model, **body}).encode(),
        headers={"Authorization": f"Bearer {context.api_key}"},
    )
    try:
        with urllib.request.urlopen(request) as reply:
            return reply.status, json.loads(reply.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


@pytest.fixture
def ask(play):
    """``ask(route, **fields)``: the status and the object of one request's reply, behind one that is answered."""

    def run(route, *, template=False, overrides="refuse", **fields):
        found = []

        def agent(context):
            post(context, "/chat/completions", messages=SAID)
            found.append(post(context, route, **{**BODIES[route], **fields}))
            return 1.0

        context = play.context()
        if template:
            context = replace(context, renderer=Template())
        (*rows,) = play(agent, context=context, overrides=overrides)
        return *found[0], sum(row.metrics["endpoint/ignored_fields"] for row in rows[:1])

    return run


REFUSED = [
    (
        "/chat/completions",
        {"parallel_tool_calls": False},
        "parallel_tool_calls",
        "as many tools as",
    ),
    (
        "/chat/completions",
        {"messages": [{"role": "user", "content": "hi", "name": "Ann"}]},
        "messages[0].name",
        "roles and contents alone",
    ),
    ("/chat/completions", {"functions": [{"name": "f"}]}, "functions", "send tools"),
    ("/chat/completions", {"function_call": "auto"}, "function_call", "send tool_choice"),
    ("/chat/completions", {"reasoning_effort": "high"}, "reasoning_effort", "reads no variable"),
    ("/chat/completions", {"modalities": ["text", "audio"]}, "modalities", "answers are text"),
    ("/chat/completions", {"audio": {"voice": "x"}}, "audio", "answers are text"),
    ("/chat/completions", {"verbosity": "low"}, "verbosity", "nothing tells the policy"),
    (
        "/chat/completions",
        {"web_search_options": {}},
        "web_search_options",
        "nothing here searches",
    ),
    (
        "/chat/completions",
        {"max_output_tokens": 3},
        "max_output_tokens",
        "reads no such field here",
    ),
    (
        "/chat/completions",
        {"chat_template_kwargs": 3},
        "chat_template_kwargs",
        "expected an object",
    ),
    (
        "/chat/completions",
        {"chat_template_kwargs": {"enable_thinking": False}},
        "chat_template_kwargs",
        "reads no such variables",
    ),
    ("/completions", {"chat_template_kwargs": {"a": 1}}, "chat_template_kwargs", "is for messages"),
    ("/completions", {"tools": []}, "tools", "reads no such field here"),
    ("/responses", {"reasoning": {"effort": "high"}}, "reasoning_effort", "reads no variable"),
    ("/responses", {"truncation": "auto"}, "truncation", "ends the episode"),
    ("/responses", {"max_tool_calls": 1}, "max_tool_calls", "as many tools as"),
    ("/responses", {"include": ["file_search_call.results"]}, "include", "no response has"),
    ("/responses", {"text": {"verbosity": "low"}}, "text.verbosity", "nothing tells the policy"),
    ("/responses", {"top_logprobs": 2}, "top_logprobs", "shows no log-probs"),
    (
        "/messages",
        {"thinking": {"type": "enabled", "budget_tokens": 2000}},
        "thinking",
        "as it does",
    ),
    ("/messages", {"mcp_servers": [{"url": "x"}]}, "mcp_servers", "reads no such field here"),
    (
        "/messages",
        {"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}},
        "tool_choice.disable_parallel_tool_use",
        "as many tools as",
    ),
]


@pytest.mark.parametrize(("route", "fields", "parameter", "message"), REFUSED)
def test_what_cannot_be_obeyed_is_refused_by_name(ask, route, fields, parameter, message):
    status, reply, _ = ask(route, **fields)

    assert status == 400
    assert message in reply["error"]["message"]
    assert parameter in reply["error"]["message"]
    if route != "/messages":
        assert reply["error"]["param"] == parameter


def test_calls_of_the_older_form_in_messages_are_refused(ask):
    called = {
        "role": "assistant",
        "content": None,
        "function_call": {"name": "f", "arguments": "{}"},
    }

    status, reply, _ = ask("/chat/completions", messages=[*SAID, called, *SAID])

    assert status == 400
    assert reply["error"]["param"] == "messages[1].function_call"


ACCEPTED = [
    ("/chat/completions", {"parallel_tool_calls": True, "modalities": ["text"], "user": "u"}),
    ("/chat/completions", {"metadata": {"a": "b"}, "store": False, "seed": 3, "functions": None}),
    ("/chat/completions", {"service_tier": "auto", "prediction": None, "something_new": None}),
    ("/chat/completions", {"messages": [{**SAID[0], "name": None}]}),
    (
        "/chat/completions",
        {"tools": [{"type": "function", "function": {"name": "f", "strict": False}}]},
    ),
    ("/completions", {"user": "u", "best_of": 1}),
    ("/responses", {"reasoning": {"effort": None}, "include": ["reasoning.encrypted_content"]}),
    ("/responses", {"truncation": "disabled", "store": True, "text": {"format": {"type": "text"}}}),
    ("/messages", {"metadata": {"user_id": "u"}, "tool_choice": {"type": "auto"}}),
]


@pytest.mark.parametrize(("route", "fields"), ACCEPTED)
def test_what_changes_nothing_is_accepted(ask, route, fields):
    status, _, ignored = ask(route, **fields)

    assert (status, ignored) == (200, 0.0)


@pytest.mark.parametrize(
    "fields",
    [
        {"parallel_tool_calls": False},
        {"reasoning_effort": "high"},
        {"something_new": 1},
        {"messages": [{**SAID[0], "name": "Ann"}]},
        {"tools": [{"type": "function", "function": {"name": "f", "strict": True}}]},
    ],
)
def test_with_ignore_such_fields_are_left_aside_and_counted(ask, fields):
    status, _, ignored = ask("/chat/completions", overrides="ignore", **fields)

    assert (status, ignored) == (200, 1.0)


@pytest.mark.parametrize(
    ("route", "fields", "shown"),
    [
        (
            "/chat/completions",
            {"chat_template_kwargs": {"enable_thinking": False}},
            '{"enable_thinking": false}',
        ),
        ("/chat/completions", {"reasoning_effort": "high"}, '{"reasoning_effort": "high"}'),
        ("/responses", {"reasoning": {"effort": "low"}}, '{"reasoning_effort": "low"}'),
        (
            "/messages",
            {"chat_template_kwargs": {"enable_thinking": True}},
            '{"enable_thinking": true}',
        ),
    ],
)
def test_variables_of_the_template_are_obeyed(ask, play, route, fields, shown):
    status, _, _ = ask(route, template=True, **fields)

    read = play.renderer.decode(play.engine.requests[-1].prompt_ids, skip_special_tokens=False)
    assert status == 200
    assert read == f"[{shown}][user]hi|[assistant]"


def test_a_variable_that_the_template_does_not_read_is_refused_with_those_that_it_reads(ask):
    status, reply, _ = ask(
        "/chat/completions", template=True, chat_template_kwargs={"thinking": False}
    )

    assert (status, reply["error"]["param"]) == (400, "chat_template_kwargs")
    assert "'thinking' would change nothing; it reads enable_thinking" in reply["error"]["message"]


def test_a_conversation_goes_on_with_the_same_variables_and_forks_with_others(play):
    off = {"enable_thinking": False}

    def agent(context):
        messages = list(SAID)
        for given in (off, off, {}):
            _, reply = post(
                context, "/chat/completions", messages=messages, chat_template_kwargs=given
            )
            messages += [reply["choices"][0]["message"], {"role": "user", "content": "more"}]
        return 1.0

    play(agent, context=replace(play.context(), renderer=Template()))

    first, second, third = (
        play.renderer.decode(one.prompt_ids, skip_special_tokens=False)
        for one in play.engine.requests
    )
    assert second.startswith(first)
    assert not third.startswith("[{")


CALLED = {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": "{}"}}
CALLING = {"role": "assistant", "content": "", "tool_calls": [CALLED]}
USED = {"type": "tool_use", "id": "call_1", "name": "add", "input": {}}


def chat_result(**name):
    return {"messages": [*SAID, CALLING, {"role": "tool", "content": "4", **name}]}


def response_result(name):
    call = {"type": "function_call", "call_id": "call_1", "name": "add", "arguments": "{}"}
    result = {"type": "function_call_output", "call_id": name, "output": "4"}
    return {"input": [{"role": "user", "content": "hi"}, call, result]}


def message_result(name):
    result = {"type": "tool_result", "tool_use_id": name, "content": "4"}
    called = {"role": "assistant", "content": [USED]}
    return {"messages": [*SAID, called, {"role": "user", "content": [result]}]}


@pytest.mark.parametrize(
    ("route", "fields", "parameter"),
    [
        ("/chat/completions", chat_result(tool_call_id="call_2"), "messages"),
        ("/responses", response_result("call_2"), "input"),
        ("/messages", message_result("call_2"), None),
    ],
)
def test_a_result_of_a_call_that_no_answer_made_is_refused(ask, route, fields, parameter):
    """As OpenAI and Anthropic do. A template shows it as the result of another call, or of none."""
    status, reply, _ = ask(route, **fields)

    assert status == 400
    assert reply["error"]["message"] == (
        "a tool's result is for the call 'call_2', which no answer before it made; expected one of: call_1"
    )
    if parameter is not None:
        assert (reply["error"]["param"], reply["error"]["code"]) == (parameter, "unknown_tool_call")


def test_a_result_without_the_id_of_its_call_is_refused(ask):
    status, reply, _ = ask("/chat/completions", **chat_result())

    assert status == 400
    assert reply["error"]["param"] == "messages[2].tool_call_id"
    assert reply["error"]["message"] == (
        "messages[2].tool_call_id is missing; expected the id of the call that this result is of"
    )


def test_a_result_without_any_call_is_refused(ask):
    status, reply, _ = ask(
        "/chat/completions",
        messages=[*SAID, {"role": "tool", "tool_call_id": "call_1", "content": "4"}],
    )

    assert status == 400
    assert reply["error"]["message"].endswith("made; expected one behind an answer with tool_calls")


@pytest.mark.parametrize(
    ("route", "fields"),
    [
        ("/chat/completions", chat_result(tool_call_id="call_1")),
        ("/responses", response_result("call_1")),
        ("/messages", message_result("call_1")),
    ],
)
def test_a_result_of_a_call_is_read(ask, route, fields):
    assert ask(route, **fields)[0] == 200
