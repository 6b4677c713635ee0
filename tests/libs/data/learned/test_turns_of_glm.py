"""Learned turns of GLM, whose template ends no turn: a turn stops at the mark of the message that follows it.

The model's configuration lists these marks, ``<|user|>`` and ``<|observation|>``, as ends, so a policy has to learn
them, behind the last answer too, where the template writes nothing. The rest is Transformers' rendering.
"""

import pytest
from tests.libs.data.chat.template.shipped import renderer_of, source_of, tokenizer_with

from rlhf_data import (
    ConversationColumns,
    PairColumns,
    SequenceOptions,
    TokenizerRenderer,
    load_conversations,
    load_pairs,
)
from rlhf_data.learned.chat_spans import ChatSpans
from rlhf_data.learned.messages import answers_in
from rlhf_data.rows import RowProblem

USER = {"role": "user", "content": "Why?"}
ANSWER = {"role": "assistant", "content": "So."}
OTHER = {"role": "assistant", "content": "No."}
THOUGHT = {"role": "assistant", "content": "Yes.", "reasoning_content": "hm"}
CALL = {
    "role": "assistant",
    "content": "",
    "tool_calls": [{"type": "function", "function": {"name": "look", "arguments": {"at": "sky"}}}],
}
RESULT = {"role": "tool", "content": "blue"}
TOOLS = [
    {"type": "function", "function": {"name": "look", "description": "Look.", "parameters": {}}}
]
ANSWER_TURN = "\n<think></think>\nSo.<|user|>"
THOUGHT_TURN = "\n<think>hm</think>\nYes.<|user|>"
CALL_TURN = (
    "\n<think></think>\n<tool_call>look\n<arg_key>at</arg_key>\n<arg_value>sky</arg_value>\n"
    "</tool_call><|observation|>"
)


def found(messages, tools=None, learned=None):
    renderer = renderer_of("glm4moe")
    wanted = answers_in(messages) if learned is None else learned
    return ChatSpans(renderer).find(messages, wanted, tools)


@pytest.mark.parametrize(
    ("messages", "turns", "added"),
    [
        ([USER, ANSWER], [ANSWER_TURN], "<|user|>"),
        ([USER, THOUGHT], [THOUGHT_TURN], "<|user|>"),
        ([USER, ANSWER, USER, THOUGHT], [ANSWER_TURN, THOUGHT_TURN], "<|user|>"),
        ([USER, ANSWER, USER], [ANSWER_TURN], ""),
        ([USER, CALL], [CALL_TURN], "<|observation|>"),
        ([USER, CALL, RESULT, ANSWER], [CALL_TURN, ANSWER_TURN], "<|user|>"),
        ([USER, CALL, RESULT, CALL], [CALL_TURN, CALL_TURN], "<|observation|>"),
        ([USER, CALL, RESULT], [CALL_TURN], ""),
        ([USER, ANSWER, USER, CALL, RESULT, CALL, RESULT, ANSWER], None, "<|user|>"),
    ],
)
@pytest.mark.parametrize("tools", [None, TOOLS])
def test_a_turn_ends_with_the_mark_at_which_the_model_stops(messages, turns, added, tools):
    made = found(messages, tools)

    shown = renderer_of("glm4moe").tokenizer.apply_chat_template(
        messages, tools=tools, tokenize=False
    )
    assert made.text == shown + added
    expected = [ANSWER_TURN, CALL_TURN, CALL_TURN, ANSWER_TURN] if turns is None else turns
    assert [made.text[slice(*span)] for span in made.spans] == expected


def test_the_last_turn_alone_is_learned_with_its_mark():
    made = found([USER, ANSWER, USER, THOUGHT], learned=(3,))

    assert [made.text[slice(*span)] for span in made.spans] == [THOUGHT_TURN]


def test_an_answer_that_another_one_follows_has_no_end():
    """``<|assistant|>`` begins answers: a policy that learned to write it would go on."""
    with pytest.raises(RowProblem, match=r"message 2: .*a special token behind each answer"):
        found([USER, ANSWER, OTHER])
    assert found([USER, ANSWER, OTHER], learned=(2,)).text.endswith("No.<|user|>")


def test_a_mark_that_begins_every_message_ends_no_turn():
    template = (
        "{% for m in messages %}{{ '<|start|>' + m.role + ':' + m.content }}{% endfor %}"
        "{% if add_generation_prompt %}<|start|>assistant:{% endif %}"
    )
    renderer = TokenizerRenderer(tokenizer_with(template))

    with pytest.raises(RowProblem, match=r"a special token behind each answer"):
        ChatSpans(renderer).find([USER, ANSWER], (1,))


def test_a_template_that_ends_its_turns_gets_no_mark():
    template = source_of("qwen3")
    renderer = TokenizerRenderer(tokenizer_with(template, "<|im_end|>"))

    made = ChatSpans(renderer).find([USER, ANSWER], (1,))

    assert made.text.endswith("So.<|im_end|>\n")


def test_rows_of_both_kinds_are_tokens_through_the_mark(write_rows):
    renderer = renderer_of("glm4moe")
    tokenizer = renderer.tokenizer
    more = {"renderer": renderer, "eos": tokenizer.eos_token_id}
    sft = load_conversations(
        [write_rows([{"messages": [USER, ANSWER]}], "sft.jsonl")],
        ConversationColumns(messages_key="messages"),
        SequenceOptions(),
        **more,
    )
    pairs = load_pairs(
        [write_rows([{"prompt": [USER], "chosen": "So.", "rejected": "No."}], "pairs.jsonl")],
        PairColumns(),
        SequenceOptions(),
        **more,
    )

    mark = tokenizer.convert_tokens_to_ids("<|user|>")
    for rows in (sft, pairs):
        for row in range(len(rows.columns)):
            assert rows.columns.tokens_of(row)[-1] == mark
            assert rows.columns.action_mask[rows.columns.token_offsets[row + 1] - 1]
    assert sft.columns.tokens_of(0).tolist() == pairs.columns.tokens_of(0).tolist()
