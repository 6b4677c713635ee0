"""Messages of other roles than the assistant's, which a simulator of users or of tools learns to write."""

import pytest
from pydantic import ValidationError
from tests.libs.data.chat.template.shipped import renderer_of

from rlhf_core.errors import DataError
from rlhf_data import ConversationColumns, SequenceOptions, load_conversations
from rlhf_testing.errors import has_code

SYSTEM = {"role": "system", "content": "Be brief."}
ASKED, SAID = {"role": "user", "content": "Why?"}, {"role": "assistant", "content": "So."}
MORE, DONE = {"role": "user", "content": "And <|im_end|> now?"}, {**SAID, "content": "Ok."}
CALL = {
    "role": "assistant",
    "content": "",
    "tool_calls": [{"type": "function", "function": {"name": "add", "arguments": {"a": 1}}}],
}
RESULT = {"role": "tool", "content": "42", "name": "add"}
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]
CHAT = [ASKED, SAID, MORE, DONE]


def turns(name, messages, write_rows, roles=("user",), tools=None, **columns):
    """The learned turns of one row, each as text."""
    renderer = renderer_of(name)
    rows = load_conversations(
        [write_rows([{"messages": messages} | ({} if tools is None else {"tools": tools})])],
        ConversationColumns(messages_key="messages", roles=roles, **columns),
        SequenceOptions(max_length=4096),
        renderer,
        eos=renderer.tokenizer.eos_token_id,
    ).columns
    learned, found = rows.actions_of(0).tolist(), []
    for length in rows.turn_actions.tolist():
        found.append(renderer.decode(learned[:length], skip_special_tokens=False))
        learned = learned[length:]
    return found


USERS = {
    "qwen2_5": ["Why?<|im_end|>", "And <|im_end|> now?<|im_end|>"],
    "qwen3": ["Why?<|im_end|>", "And <|im_end|> now?<|im_end|>"],
    "qwen2_5_training": ["Why?<|im_end|>", "And <|im_end|> now?<|im_end|>"],
    "llama3": ["Why?<|eot_id|>", "And <|im_end|> now?<|eot_id|>"],
    "gemma3": ["Why?<end_of_turn>", "And <|im_end|> now?<end_of_turn>"],
    "gptoss": ["Why?<|end|>", "And <|im_end|> now?<|end|>"],
    # These end a question by the mark with which the answer begins.
    "deepseekv3": ["Why?<\uff5cAssistant\uff5c>", "And <|im_end|> now?<\uff5cAssistant\uff5c>"],
    "glm4moe": ["Why?<|assistant|>", "And <|im_end|> now?<|assistant|>"],
    "mistral_v7": ["Why?[/INST]", "And <|im_end|> now?[/INST]"],
}


@pytest.mark.parametrize("name", USERS)
def test_the_user_s_messages_are_learned_through_the_token_behind_them(write_rows, name):
    assert turns(name, CHAT, write_rows) == USERS[name]


@pytest.mark.parametrize("name", ["qwen2_5", "qwen3", "llama3", "qwen2_5_training"])
def test_several_roles_are_learned_in_their_order(write_rows, name):
    own = turns(name, [SYSTEM, *CHAT], write_rows, ("assistant",))
    users = turns(name, [SYSTEM, *CHAT], write_rows, ("user",))
    system = turns(name, [SYSTEM, *CHAT], write_rows, ("system",))

    both = turns(name, [SYSTEM, *CHAT], write_rows, ("user", "system", "assistant"))

    assert system[0].startswith("Be brief.")
    assert both == [system[0], users[0], own[0], users[1], own[1]]


def test_results_of_tools_are_learned(write_rows):
    messages = [ASKED, CALL, RESULT, SAID]

    found = turns("llama3_1", messages, write_rows, ("tool",), TOOLS, tools_key="tools")
    both = turns("qwen2_5", messages, write_rows, ("tool", "assistant"), TOOLS, tools_key="tools")

    assert found == ['42"<|eot_id|>']  # the template writes a result in JSON
    assert both[1] == "42\n</tool_response><|im_end|>"


def test_the_last_message_of_the_roles_alone(write_rows):
    assert turns("llama3", CHAT, write_rows, learn="last") == ["And <|im_end|> now?<|eot_id|>"]


def test_a_message_of_a_learned_role_may_be_context(write_rows):
    chat = [{**ASKED, "train": False}, SAID, {**MORE, "train": True}, DONE]

    assert turns("llama3", chat, write_rows) == ["And <|im_end|> now?<|eot_id|>"]


BAD = {
    "of no role that is learned": (
        {"messages": [{**ASKED, "train": True}, SAID]},
        ("assistant",),
        "name the role in --data.roles",
        "data/weight",
    ),
    "characters": (
        {"messages": [ASKED, {**SAID, "train_detail": [{"begin_offset": 0, "end_offset": 1}]}]},
        ("assistant",),
        "'train_detail' says which characters are learned",
        "data/weight",
    ),
    "a scale": (
        {"messages": [ASKED, {**SAID, "loss_scale": 0.5}]},
        ("assistant",),
        "as 'loss_scale', got 0.5",
        "data/weight",
    ),
    "an image": (
        {"messages": [{"role": "user", "content": [{"type": "image", "image": "a.png"}]}, SAID]},
        ("user",),
        "image",
        "data/not-text",
    ),
    "nobody": (
        {"messages": [ASKED, SAID]},
        ("tool",),
        "no message of the tool",
        "data/nothing-to-learn",
    ),
    "prompt and response": (
        {"prompt": [ASKED], "response": "So."},
        ("user", "assistant"),
        "the response alone is learned",
        "data/roles",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_learned_is_said(write_rows, case):
    row, roles, said, code = BAD[case]
    renderer = renderer_of("llama3")
    columns = ConversationColumns(
        messages_key="messages" if "messages" in row else None, roles=roles
    )

    with pytest.raises(DataError, check=has_code(code)) as error:
        load_conversations(
            [write_rows([row])],
            columns,
            SequenceOptions(),
            renderer,
            eos=renderer.tokenizer.eos_token_id,
        )

    assert said in str(error.value)


def test_plain_texts_have_no_roles():
    with pytest.raises(ValidationError, match="has no roles"):
        ConversationColumns(text_key="text", roles=("user",))
