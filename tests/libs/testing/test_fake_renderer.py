"""The renderer over characters keeps the renderer's contract."""

from rlhf_core.contracts import Renderer, ToolCall
from rlhf_testing.fakes import EOS_ID, FakeRenderer

RENDERER = FakeRenderer()
LOOK = {"type": "function", "function": {"name": "look", "parameters": {}}}


def test_it_keeps_its_contract():
    renderer: Renderer = RENDERER
    assert renderer.decode(renderer.encode("a")) == "a"


def test_tools_stand_before_the_messages():
    text = RENDERER.decode(RENDERER.render([{"role": "user", "content": "hi"}], [LOOK]))

    assert text == "[tools]look|[user]hi|[assistant]"


def test_an_answer_is_parsed():
    call = '<tool_call>{"name": "look", "arguments": {"at": 1}}</tool_call>'

    answer = RENDERER.parse(RENDERER.encode(f"<think>hm</think>so{call}"))

    assert (answer.reasoning, answer.content) == ("hm", "so")
    assert answer.tool_calls == (ToolCall(name="look", arguments='{"at": 1}', id="call_0"),)


def test_a_plain_answer_has_no_content():
    answer = RENDERER.parse([*RENDERER.encode("so"), EOS_ID])

    assert (answer.text, answer.content, answer.tool_calls) == ("so", None, ())


def test_a_broken_call_is_malformed():
    answer = RENDERER.parse(RENDERER.encode("<tool_call>{nonsense</tool_call>"))

    assert answer.tool_calls == ()
    assert "nonsense" in answer.malformed[0]


def test_a_thought_without_an_end_is_open():
    answer = RENDERER.parse(RENDERER.encode("<think>hm"))

    assert answer.reasoning_open
    assert (answer.reasoning, answer.content) == ("hm", "")


def test_the_tokens_so_far_are_kept():
    messages = [{"role": "user", "content": "hi"}]
    following = RENDERER.render_next(messages, ended=True)

    continued = RENDERER.extend([], [5, EOS_ID], messages, ended=True)

    assert continued.token_ids == (5, EOS_ID, *following)
    assert not continued.forked
