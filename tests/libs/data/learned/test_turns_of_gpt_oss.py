"""Learned turns of gpt-oss, whose template writes thoughts as messages of their own, and calls unlike answers.

What is learned of a conversation is compared with Transformers' own renderings of its beginnings: a turn is what stands
between the rendering that asks for it and the one that ends with it.
"""

import pytest
from tests.libs.data.chat.template.shipped import renderer_of

from rlhf_data.learned.chat_spans import ChatSpans
from rlhf_data.learned.messages import answers_in
from rlhf_data.rows import RowProblem

USER = {"role": "user", "content": "Why?"}
ANSWER = {"role": "assistant", "content": "So."}
THOUGHT = {"role": "assistant", "content": "Yes.", "thinking": "hm"}
CALL = {
    "role": "assistant",
    "content": "",
    "tool_calls": [{"type": "function", "function": {"name": "look", "arguments": {"at": "sky"}}}],
}
RESULT = {"role": "tool", "content": "blue"}
TOOLS = [
    {"type": "function", "function": {"name": "look", "description": "Look.", "parameters": {}}}
]
THOUGHT_TURN = "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>Yes.<|return|>"
ANALYSIS = "<|channel|>analysis<|message|>hm<|end|><|start|>assistant"
THOUGHT_TURN = ANALYSIS + "<|channel|>final<|message|>Yes.<|return|>"
CALL_TURN = ' to=functions.look<|channel|>commentary json<|message|>{"at": "sky"}<|call|>'
ANSWER_TURN = "<|channel|>final<|message|>So."


def learned_texts(messages, learned=None, tools=None):
    renderer = renderer_of("gptoss")
    wanted = answers_in(messages) if learned is None else learned
    made = ChatSpans(renderer).find(messages, wanted, tools)
    shown = renderer.tokenizer.apply_chat_template(messages, tools=tools, tokenize=False)
    assert made.text == shown
    return [made.text[slice(*span)] for span in made.spans]


@pytest.mark.parametrize(
    ("messages", "turns"),
    [
        ([USER, THOUGHT], [THOUGHT_TURN]),
        ([USER, ANSWER, USER, THOUGHT], [ANSWER_TURN + "<|end|>", THOUGHT_TURN]),
        ([USER, CALL], [CALL_TURN]),
        ([USER, {**CALL, "thinking": "hm"}], [ANALYSIS + CALL_TURN]),
        ([USER, CALL, RESULT, ANSWER], [CALL_TURN, ANSWER_TURN + "<|return|>"]),
        ([USER, CALL, RESULT, CALL, RESULT, THOUGHT], [CALL_TURN, CALL_TURN, THOUGHT_TURN]),
        (
            [USER, ANSWER, USER, CALL, RESULT, THOUGHT],
            [ANSWER_TURN + "<|end|>", CALL_TURN, THOUGHT_TURN],
        ),
    ],
)
def test_thoughts_and_calls_are_learned_and_results_are_not(messages, turns):
    assert learned_texts(messages) == turns
    assert learned_texts(messages, tools=TOOLS) == turns


def test_a_turn_begins_where_the_template_asks_for_it_and_ends_where_its_rendering_does():
    messages = [USER, CALL, RESULT, THOUGHT]
    tokenizer = renderer_of("gptoss").tokenizer

    def rendered(end, reply):
        return tokenizer.apply_chat_template(
            messages[:end], tokenize=False, add_generation_prompt=reply
        )

    turns = [rendered(at + 1, False)[len(rendered(at, True)) :] for at in (1, 3)]

    assert learned_texts(messages) == turns


def test_a_thought_before_a_call_that_the_template_drops_is_refused():
    messages = [USER, {**CALL, "thinking": "hm"}, RESULT, ANSWER]

    with pytest.raises(
        RowProblem, match=r"message 2: .* to=functions\.look.*learn the last turn only"
    ):
        learned_texts(messages)
    assert learned_texts(messages, learned=(3,)) == [ANSWER_TURN + "<|return|>"]


@pytest.mark.parametrize(
    ("name", "given", "read"),
    [
        ("gptoss", "reasoning_content", "thinking"),
        ("qwen3", "thinking", "reasoning_content"),
        ("qwen3", "reasoning", "reasoning_content"),
    ],
)
def test_a_thought_under_the_key_of_another_template_is_refused_with_the_right_key(
    name, given, read
):
    message = {"role": "assistant", "content": "Yes.", given: "hm"}

    with pytest.raises(
        RowProblem,
        match=rf"message 2: .* the thought in '{given}', and reads thoughts in '{read}': call",
    ):
        ChatSpans(renderer_of(name)).find([USER, message], (1,))
