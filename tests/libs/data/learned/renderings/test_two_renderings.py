"""Conversations in two renderings: the same answers in both, or a bad row."""

import numpy as np
import pytest

from rlhf_core.errors import DataError
from rlhf_data import (
    ConversationColumns,
    OtherRendering,
    SequenceOptions,
    TokenizerRenderer,
    load_conversations,
    load_renderings,
)
from rlhf_testing.errors import has_code
from rlhf_testing.tiny import tiny_tokenizer

TEACHERS = (
    "{% for m in messages %}[{{ m['role'] }}] {{ m['content'] }}<bos>{% endfor %}"
    "{% if add_generation_prompt %}[assistant] {% endif %}"
)
"""Another form, in which turns end by another token."""
CHAT = [
    {"role": "user", "content": "Why?"},
    {"role": "assistant", "content": "So."},
    {"role": "user", "content": "Eh?"},
    {"role": "assistant", "content": "Yes."},
]
MESSAGES = ConversationColumns(messages_key="messages")


@pytest.fixture
def load(write_rows):
    def run(rows, columns=MESSAGES, template=TEACHERS, system_prompt=None, **options):
        student, teacher = tiny_tokenizer(), tiny_tokenizer()
        teacher.chat_template = template
        other = OtherRendering(
            renderer=TokenizerRenderer(teacher),
            system_prompt=system_prompt,
            options="--teacher.chat_template",
        )
        path, own = write_rows(rows), TokenizerRenderer(student)
        given = [path], columns, SequenceOptions(**options), own
        return load_renderings(*given, other=other, eos=2), lambda: load_conversations(
            *given, eos=2
        )

    return run


def shown(rows, row):
    """The text of a sequence, and that of its learned tokens."""
    tokenizer, columns = tiny_tokenizer(), rows.columns
    return tokenizer.decode(columns.tokens_of(row)), tokenizer.decode(columns.actions_of(row))


def test_every_second_sequence_is_the_other_rendering(load):
    rows, plain = load([{"messages": CHAT}], system_prompt="Hm.")

    assert shown(rows, 0) == (
        "user:Why?\nassistant:So.<eos>\nuser:Eh?\nassistant:Yes.<eos>\n",
        "So.<eos>Yes.<eos>",
    )
    assert shown(rows, 1) == (
        "[system] Hm.<bos>[user] Why?<bos>[assistant] So.<bos>[user] Eh?<bos>[assistant] Yes.<bos>",
        "So.<bos>Yes.<bos>",
    )
    assert rows.columns.uid[:, 2].tolist() == [0, 1]
    own, alone = rows.columns.select(np.array([0])), plain().columns
    for name, column in alone.arrays().items():
        np.testing.assert_array_equal(own.arrays()[name], column, err_msg=name)


@pytest.mark.parametrize("max_length", [40, 50, 60])
def test_both_lose_the_same_tokens_where_rows_are_cut(load, max_length):
    rows, _ = load([{"messages": CHAT}], max_length=max_length, on_too_long="truncate")

    own, other = (shown(rows, row)[1].replace("<bos>", "<eos>") for row in (0, 1))
    assert own == other
    assert "So.<eos>Yes.<eos>".startswith(own)
    assert rows.columns.num_tokens.max() <= max_length
    assert rows.columns.turn_actions[:2].sum() <= 9


@pytest.mark.parametrize(
    ("template", "columns", "rows", "options", "message", "code"),
    [
        (
            TEACHERS.replace("[assistant] ", "[assistant]"),
            MESSAGES,
            [{"messages": CHAT}],
            {},
            r"rows\.jsonl:1: turn 1 to learn is 'So.<eos>' \(4 tokens\), and ' So.<bos>' \(5 tokens\)",
            "data/other-tokens",
        ),
        (
            TEACHERS.replace("<bos>", "\n"),
            MESSAGES,
            [{"messages": CHAT}],
            {},
            "as --teacher.chat_template renders it: message 2: expected a chat template that writes a special token",
            "data/no-end-of-turn",
        ),
        (
            TEACHERS,
            MESSAGES,
            [{"messages": CHAT}],
            {"max_length": 53},
            "as --teacher.chat_template renders it: the row has",
            "data/too-long",
        ),
        (
            TEACHERS,
            ConversationColumns(),
            [{"prompt": "1", "response": "2"}],
            {},
            "Add --data.chat",
            "data/no-chat",
        ),
        (
            TEACHERS,
            ConversationColumns(text_key="text"),
            [{"text": "abc"}],
            {},
            "has plain text",
            "data/plain-text",
        ),
    ],
)
def test_rows_without_the_same_answers_are_refused(
    load, template, columns, rows, options, message, code
):
    with pytest.raises(DataError, match=message, check=has_code(code)):
        load(rows, columns, template, **options)


def test_cached_tokens_are_those_of_the_same_renderings(load, tmp_path):
    folder = str(tmp_path / "cache")
    first, second, third = (
        load([{"messages": CHAT}], system_prompt=prompt, cache=folder)[0]
        for prompt in ("Hm.", "Hm.", "Oh!")
    )

    assert shown(second, 1) == shown(first, 1)
    assert "Oh!" in shown(third, 1)[0]
