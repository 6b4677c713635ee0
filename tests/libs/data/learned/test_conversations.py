"""Rows to imitate: what is learned of each form, and what is said of each bad row."""

import numpy as np
import pytest
from tests.libs.data.learned.families import renderer_of

from rlhf_core.errors import DataError
from rlhf_data import (
    ConversationColumns,
    LearnedRows,
    SequenceOptions,
    TokenizerRenderer,
    load_conversations,
)
from rlhf_testing.errors import has_code
from rlhf_testing.tiny import tiny_tokenizer
from rlhf_trainer.learning.parts import SupervisedRows

USER = {"role": "user", "content": "Why?"}
ANSWER = {"role": "assistant", "content": "So."}
CHAT = [USER, ANSWER, {"role": "user", "content": "Eh?"}, {"role": "assistant", "content": "Yes."}]
SYSTEM = {"role": "system", "content": "Be brief."}
HEAD = "<|im_start|>system\nYou are kind.<|im_end|>\n<|im_start|>user\nWhy?<|im_end|>\n<|im_start|>assistant\n"
MESSAGES = ConversationColumns(messages_key="messages")
TEXT = ConversationColumns(text_key="text")


def test_a_text_prompt_is_followed_by_the_response_and_the_end(load, shown):
    rows = load(ConversationColumns(), [{"prompt": "Q: 1+1\nA:", "response": " 2"}])

    assert shown(rows, 0) == "Q: 1+1\nA:[ 2<eos>]"


@pytest.mark.parametrize("end", ["<|im_end|>", "<eos>"])
def test_a_response_that_has_an_end_of_turn_gets_no_other(load, shown, end):
    """As in rows that were rendered before, with ``data.control_words = "tokens"``."""
    rows = load(ConversationColumns(), [{"prompt": "Q", "response": f"A{end}"}])

    assert shown(rows, 0) == f"Q[A{end}]"


def test_prompt_and_response_are_tokenized_together(load, shown):
    """A token that holds the end of the prompt and the beginning of the response is learned."""
    renderer = renderer_of("zephyr", "bpe")
    prompt, response = "Hi [/INST]", " Hello"
    together = renderer.encode(prompt + response)
    assert together != [*renderer.encode(prompt), *renderer.encode(response)], "else no token does"

    rows = load(
        ConversationColumns(),
        [{"prompt": prompt, "response": response}],
        family="zephyr",
        kind="bpe",
    )

    assert rows.columns.tokens_of(0).tolist() == [*together, renderer.tokenizer.eos_token_id]
    assert shown(rows, 0, family="zephyr", kind="bpe") == "Hi [[/INST] Hello</s>]"


def test_a_template_and_other_columns_make_the_prompt(load, shown):
    columns = ConversationColumns(template="Q: {question}\nA:", response_key="solution")

    rows = load(columns, [{"question": "1+1", "solution": "2"}])

    assert shown(rows, 0) == "Q: 1+1\nA:[2<eos>]"


@pytest.mark.parametrize(
    ("columns", "row"),
    [
        (ConversationColumns(chat=True), {"prompt": "Why?", "response": "So."}),
        (ConversationColumns(), {"prompt": [USER], "response": "So."}),
        (MESSAGES, {"messages": [USER, ANSWER]}),
    ],
)
def test_a_chat_is_learned_behind_the_generation_prompt(load, shown, columns, row):
    rows = load(columns, [row])

    assert shown(rows, 0) == HEAD + "[So.<|im_end|>]\n"


def test_the_prompts_own_answers_are_not_learned(load, shown):
    rows = load(ConversationColumns(), [{"prompt": CHAT[:3], "response": "Yes."}])

    assert rows.columns.num_turns.tolist() == [1]
    assert shown(rows, 0).endswith("assistant\n[Yes.<|im_end|>]\n")


def test_all_turns_are_learned_or_the_last(load, shown):
    every, last = (
        load(ConversationColumns(messages_key="messages", learn=learn), [{"messages": CHAT}])
        for learn in ("all", "last")
    )

    head, tail = (
        HEAD,
        "\n<|im_start|>user\nEh?<|im_end|>\n<|im_start|>assistant\n[Yes.<|im_end|>]\n",
    )
    assert shown(every, 0) == head + "[So.<|im_end|>]" + tail
    assert shown(last, 0) == head + "So.<|im_end|>" + tail
    assert every.columns.turn_actions.tolist() == [4, 5]
    assert last.columns.turn_actions.tolist() == [5]


def test_a_system_prompt_goes_before_the_messages(load, shown):
    rows = load(
        ConversationColumns(messages_key="messages", system_prompt="Be brief."),
        [{"messages": [USER, ANSWER]}],
    )

    assert shown(rows, 0).startswith("<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user")


@pytest.mark.parametrize("tools", [[{"name": "look"}], '[{"name": "look"}]', ['{"name": "look"}']])
def test_tools_are_shown_to_the_template(load, shown, tools):
    """Tools that differ are one JSON text in a table, or a list of such texts."""
    columns = ConversationColumns(messages_key="messages", tools_key="tools")
    rows = load(
        columns,
        [
            {"messages": [USER, ANSWER], "tools": tools},
            {"messages": [USER, ANSWER], "tools": None},
        ],
        family="qwen3",
    )

    texts = [shown(rows, row, family="qwen3") for row in (0, 1)]
    assert texts[0].startswith('<|im_start|>system\n# Tools\n{"name": "look"}\n<|im_end|>\n')
    assert texts[1].startswith("<|im_start|>user")
    assert texts[0].endswith("[<think>\n\n</think>\n\nSo.<|im_end|>]\n")


def test_plain_text_is_learned_but_for_its_first_token(load, shown):
    rows = load(TEXT, [{"text": "ab"}, {"text": "cd<eos>"}])

    assert [shown(rows, row) for row in (0, 1)] == ["a[b<eos>]", "c[d<eos>]"]


def test_long_texts_are_cut_into_pieces_that_share_a_token(load, shown):
    rows = load(TEXT, [{"text": "a"}, {"text": "abcdef"}], max_length=4)

    assert [shown(rows, row) for row in range(3)] == ["a[<eos>]", "a[bcd]", "d[ef<eos>]"]
    assert rows.columns.uid.tolist() == [[0, 0, 0, 0], [0, 1, 0, 0], [0, 1, 0, 1]]
    assert rows.num_truncated == 0


def test_a_row_keeps_its_index_when_others_are_left_out(load):
    rows = load(MESSAGES, [{"messages": []}, {"messages": CHAT}], on_bad_row="skip")

    assert rows.columns.uid[:, 1].tolist() == [1]
    assert [(bad.kind, bad.where.rpartition(":")[2]) for bad in rows.bad] == [("empty", "1")]
    assert rows.total == 2


def test_rows_can_be_cut_off_and_are_counted(load, shown):
    whole = load(MESSAGES, [{"messages": CHAT}]).columns
    limit = int(whole.num_tokens[0]) - 3  # the new line behind the end, the end, and a letter

    rows = load(
        MESSAGES,
        [{"messages": CHAT}, {"messages": CHAT[:2]}],
        max_length=limit,
        on_too_long="truncate",
    )

    assert shown(rows, 0).endswith("assistant\n[Yes]")
    assert rows.columns.truncated.tolist() == [True, False]
    assert rows.num_truncated == 1
    assert "1 sequences were cut off" in rows.describe()


def test_sets_are_joined_and_limited(write_rows):
    renderer = renderer_of("qwen2", "characters")
    sets = [
        write_rows([{"messages": CHAT}, {"messages": CHAT}], "first.jsonl"),
        write_rows([{"messages": CHAT}], "second.jsonl"),
    ]

    rows = load_conversations(sets, MESSAGES, SequenceOptions(max_samples=1), renderer, eos=2)

    assert rows.columns.uid[:, 1].tolist() == [0, 2]
    assert rows.total == 2


def test_the_rows_are_taken_by_what_takes_supervised_rows(load):
    rows = load(MESSAGES, [{"messages": CHAT}, {"messages": [USER, ANSWER]}])

    taken = SupervisedRows(rows.columns, batch_size=2, seed=0).take(0)

    assert np.array_equal(taken.token_ids, rows.columns.token_ids)


BAD = {
    "broken line": (MESSAGES, "{", "broken JSON", "data/unreadable"),
    "no column": (
        MESSAGES,
        {"chat": CHAT},
        r"a column 'messages'; the row has chat. Set --data\.messages_key",
        "data/missing-column",
    ),
    "null": (MESSAGES, {"messages": None}, "column 'messages' is null", "data/empty"),
    "no list": (
        MESSAGES,
        {"messages": "Why?"},
        "expected a list of chat messages, got str",
        "data/wrong-type",
    ),
    "empty list": (MESSAGES, {"messages": []}, "the list of messages is empty", "data/empty"),
    "no answer": (
        MESSAGES,
        {"messages": [USER]},
        "expected a message of the assistant",
        "data/no-answer",
    ),
    "blank answer": (
        MESSAGES,
        {"messages": [USER, {"role": "assistant", "content": ""}]},
        "message 2: the assistant says nothing",
        "data/empty-answer",
    ),
    "unknown role": (
        MESSAGES,
        {"messages": [{"role": "human", "content": "x"}, ANSWER]},
        "got 'human'. Call it 'user'",
        "data/unknown-role",
    ),
    "unknown role of a result": (
        MESSAGES,
        {"messages": [USER, {"role": "function", "content": "x"}, ANSWER]},
        "got 'function'. Call it 'tool'",
        "data/unknown-role",
    ),
    "not text": (
        MESSAGES,
        {"messages": [{"role": "user", "content": [{"type": "image"}]}, ANSWER]},
        "message 1: expected text as content, got list",
        "data/not-text",
    ),
    "not text, in the prompt": (
        ConversationColumns(),
        {"prompt": [{"role": "user", "content": [{"type": "image"}]}], "response": "x"},
        "the messages have an image, and the run's model reads text alone",
        "data/image-for-a-text-model",
    ),
    "a number": (
        MESSAGES,
        {"messages": [{"role": "user", "content": 3}, ANSWER]},
        "expected text as content, got int 3",
        "data/bad-message",
    ),
    "two system prompts": (
        ConversationColumns(messages_key="messages", system_prompt="x"),
        {"messages": [SYSTEM, USER, ANSWER]},
        "a system message already",
        "data/two-system-prompts",
    ),
    "half a letter": (
        MESSAGES,
        '{"messages": [{"role": "user", "content": "\\ud83d"}]}',
        "surrogate",
        "data/lone-surrogate",
    ),
    "no prompt": (
        ConversationColumns(),
        {"response": "x"},
        "expected a column 'prompt'",
        "data/missing-column",
    ),
    "no response": (
        ConversationColumns(),
        {"prompt": "x"},
        r"'response'; .* --data\.response_key",
        "data/missing-column",
    ),
    "blank response": (
        ConversationColumns(),
        {"prompt": "x", "response": " "},
        "is empty",
        "data/empty",
    ),
    "response that Python printed": (
        ConversationColumns(),
        {"prompt": "x", "response": str(CHAT)},
        "'response' has messages as Python prints them",
        "data/printed-messages",
    ),
    "response of numbers": (
        ConversationColumns(),
        {"prompt": "x", "response": 3},
        "expected text, got int",
        "data/wrong-type",
    ),
    "tools without a chat": (
        ConversationColumns(tools_key="tools"),
        {"prompt": "x", "response": "y", "tools": [{"name": "look"}]},
        r"no place for tools. Add --data\.chat",
        "data/no-place-for-tools",
    ),
    "broken tools": (
        ConversationColumns(tools_key="tools", messages_key="messages"),
        {"messages": CHAT, "tools": "[{"},
        "column 'tools': broken JSON",
        "data/bad-tools",
    ),
    "tools of another type": (
        ConversationColumns(tools_key="tools", messages_key="messages"),
        {"messages": CHAT, "tools": ["look"]},
        "expected a list of JSON schemas",
        "data/bad-tools",
    ),
    "no text": (TEXT, {"text": ""}, "column 'text' is empty", "data/empty"),
    "too long": (
        MESSAGES,
        {"messages": [USER, {**ANSWER, "content": "x" * 500}]},
        "max_length allows 200",
        "data/too-long",
    ),
    "far too long": (
        MESSAGES,
        {"messages": [USER, {**ANSWER, "content": "x" * 50_000}]},
        "characters; expected at most 20000 for the 200 tokens",
        "data/too-long",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_row_is_named_by_file_line_and_reason(load, case):
    columns, row, reason, code = BAD[case]
    good = {"messages": CHAT, "prompt": "x", "response": "y", "text": "z", "tools": None}

    with pytest.raises(
        DataError,
        match=rf"(?s)data\.train: 1 of 2 rows .*rows\.jsonl:2: .*{reason}",
        check=has_code(code),
    ):
        load(columns, [good, row], max_length=200)


def test_an_answer_that_is_cut_off_whole_is_bad(load):
    with pytest.raises(
        DataError, match=r"--data\.max_length 20", check=has_code("data/nothing-left-to-learn")
    ):
        load(MESSAGES, [{"messages": CHAT}], max_length=20, on_too_long="truncate")


def test_a_hundred_thoughts_that_the_template_drops_are_counted(load):
    thought = {"role": "assistant", "content": "<think>hm</think>So."}
    rows = [{"messages": [USER, thought, *CHAT]}] * 100 + [{"messages": CHAT}]

    with pytest.raises(
        DataError, match=r"100 of 101.*\(100", check=has_code("data/changed-by-the-template")
    ) as error:
        load(MESSAGES, rows, family="qwen3")

    assert "rows.jsonl:1: message 2: the chat template does not show" in str(error.value)
    assert "and 95 more\n" in str(error.value)
    assert "rlhf data check" not in str(error.value), "which would need the model"


def test_skipped_rows_are_logged_by_kind(load, caplog):
    load(MESSAGES, [{"messages": [USER]}, {"messages": CHAT}], on_bad_row="skip")

    assert "data.train: left out 1 of 2 rows (1 no answer)" in caplog.text


def test_rows_that_are_all_bad_are_an_error_even_when_bad_rows_are_skipped(load):
    with pytest.raises(
        DataError, match="1 of 1 rows cannot be used", check=has_code("data/no-answer")
    ):
        load(MESSAGES, [{"messages": [USER]}], on_bad_row="skip")


def test_half_a_letter_in_a_tool_call_is_found(load):
    call = {"function": {"name": "look", "arguments": {"at": "\ud83d"}}}
    messages = [USER, {"role": "assistant", "content": "", "tool_calls": [call]}]

    with pytest.raises(DataError, match=r"rows\.jsonl:1: ", check=has_code("data/lone-surrogate")):
        load(MESSAGES, [{"messages": messages}], family="qwen3")


def test_chats_need_a_chat_template(write_rows):
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = None
    path = write_rows([{"messages": CHAT}])

    with pytest.raises(DataError, check=has_code("template/missing")):
        load_conversations([path], MESSAGES, SequenceOptions(), TokenizerRenderer(tokenizer), eos=2)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"messages_key": "a", "text_key": "b"}, "exclude each other"),
        ({"text_key": "b", "chat": True}, "no place for chat"),
        ({"learn": "some"}, "all"),
    ],
)
def test_columns_that_contradict_each_other_are_refused(options, reason):
    with pytest.raises(ValueError, match=reason):
        ConversationColumns(**options)


def test_what_is_read_is_described(load):
    rows = load(TEXT, [{"text": "abc"}])

    assert isinstance(rows, LearnedRows)
    assert rows.describe().startswith(
        "1 of 1 rows are 1 sequences with 4 tokens, 3 of them learned"
    )


def test_a_missing_column_is_named_beside_those_that_have_a_value(load):
    row = {"prompt": "Hi", "response": "Yo", "note": None}

    with pytest.raises(
        DataError, match=r"rows\.jsonl:2.*'response'", check=has_code("data/missing-column")
    ):
        load(ConversationColumns(), [row, {"prompt": "Hi", "note": None}])


def test_rows_with_a_label_are_imitated_where_their_form_is_given(load):
    row = {"prompt": "a", "response": "b", "label": True}

    rows = load(ConversationColumns(form="response"), [row, {**row, "label": False}])

    assert len(rows.columns) == 2
