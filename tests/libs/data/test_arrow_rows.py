"""Rows of Arrow's tables: the same values, and the same tokens, as the rows have in JSON Lines."""

import json
from copy import deepcopy

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.libs.data.learned.families import renderer_of

from rlhf_data import (
    ConversationColumns,
    SequenceOptions,
    TokenizerRenderer,
    WrittenRows,
    load_conversations,
    rows_as_written,
)
from rlhf_data.made.rows import made_rows
from rlhf_data.sources import open_source

FORMS = ("json", "parquet", "old_parquet", "saved")


def write_form(rows, form, folder):
    """Write rows in a form, and return what names it as a data set."""
    import pyarrow
    from datasets import Dataset
    from pyarrow import parquet

    path = folder / f"rows.{form}"
    match form:
        case "jsonl":
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        case "json":
            path.write_text(json.dumps(rows))
        case "parquet":
            path = folder / "rows.parquet"
            Dataset.from_list(rows).to_parquet(str(path))
        case "old_parquet":
            path = folder / "old.parquet"
            parquet.write_table(pyarrow.Table.from_pylist(rows), path)
        case "saved":
            Dataset.from_list(rows).save_to_disk(str(path))
    return str(path)


def rows_in(spec):
    source = open_source(spec)
    rows = list(source.scan())
    assert [source.row(index) for index in range(len(source))] == rows
    return rows


# Objects of one type, as a column of Arrow has them, with any of their keys left out.
TEXTS = st.text("ab é", max_size=3)
CALLS = st.fixed_dictionaries(
    {"name": TEXTS},
    optional={
        "arguments": st.fixed_dictionaries(
            {}, optional={"x": TEXTS, "y": st.integers(0, 9), "deep": st.lists(TEXTS, max_size=2)}
        ),
        "id": TEXTS,
    },
)
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {"role": TEXTS},
        optional={
            "content": TEXTS,
            "tool_calls": st.lists(CALLS, max_size=2),
            "weight": st.floats(0, 1),
        },
    ),
    max_size=3,
)
ROWS = st.lists(
    st.fixed_dictionaries({"messages": MESSAGES, "answer": TEXTS, "info": CALLS}), max_size=4
)
# One row that has every key says the types of all columns; Parquet has no object without a key.
WHOLE = {
    "messages": [
        {
            "role": "a",
            "content": "b",
            "tool_calls": [
                {"name": "f", "arguments": {"x": "1", "y": 2, "deep": ["z"]}, "id": "c"},
            ],
            "weight": 0.5,
        }
    ],
    "answer": "4",
    "info": {"name": "g", "arguments": {"x": "1", "y": 2, "deep": ["z"]}, "id": "d"},
}


@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(rows=ROWS)
def test_nested_rows_are_the_same_from_every_form(rows, tmp_path_factory, datasets_cache):
    rows = [*rows, WHOLE]
    folder = tmp_path_factory.mktemp("forms")

    for form in ("jsonl", *FORMS):
        assert rows_in(write_form(rows, form, folder)) == rows, form


TOOL = {
    "type": "function",
    "function": {
        "name": "f",
        "parameters": {"type": "object", "properties": {"x": {"type": "string"}}},
    },
}
OTHER = {
    "type": "function",
    "function": {
        "name": "g",
        "parameters": {
            "type": "object",
            "properties": {"y": {"type": "string", "description": "when"}},
            "required": ["y"],
        },
    },
}
TEMPLATE = (
    "{% for t in tools or [] %}{{ t | tojson }}\n{% endfor %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% for c in m.tool_calls or [] %}{{ c.function.name }} {{ c.function.arguments | tojson }}{% endfor %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def conversation(name, arguments, tool):
    call = {"type": "function", "function": {"name": name, "arguments": arguments}}
    messages = [
        {"role": "user", "content": "Do it."},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "done"},
        {"role": "assistant", "content": "So."},
    ]
    return {"messages": messages, "tools": [tool]}


@pytest.fixture(scope="module")
def renderer():
    tokenizer = deepcopy(renderer_of("qwen2", "characters").tokenizer)
    tokenizer.chat_template = TEMPLATE
    return TokenizerRenderer(tokenizer)


@pytest.mark.parametrize("form", FORMS)
def test_calls_and_schemas_are_the_same_tokens_from_every_form(
    form, renderer, tmp_path, datasets_cache
):
    rows = [conversation("f", {"x": "1"}, TOOL), conversation("g", {"y": "now"}, OTHER)]
    columns = ConversationColumns(messages_key="messages", tools_key="tools")

    lines, other = (
        load_conversations(
            [write_form(rows, one, tmp_path)],
            columns,
            SequenceOptions(),
            renderer,
            eos=renderer.tokenizer.eos_token_id,
        ).columns.token_ids.tolist()
        for one in ("jsonl", form)
    )

    text = renderer.decode(lines, skip_special_tokens=False)
    assert 'f {"x": "1"}' in text
    assert "null" not in text
    assert other == lines


def test_nulls_that_are_written_stay_in_json_lines(tmp_path):
    rows = [{"info": {"x": None, "y": [None, 1]}, "answer": None}]

    assert rows_in(write_form(rows, "jsonl", tmp_path)) == rows


@pytest.mark.parametrize("form", ["old_parquet", "saved"])
def test_entries_of_lists_and_columns_stay_null_in_tables(form, tmp_path, datasets_cache):
    rows = [
        {"info": {"y": [1, None]}, "answer": None, "list": [{"a": 1}, None]},
        {"info": {"y": []}, "answer": "4", "list": []},
    ]

    assert rows_in(write_form(rows, form, tmp_path)) == rows


def test_nulls_of_a_json_column_are_those_that_were_written(tmp_path, datasets_cache):
    from datasets import Dataset, Features, Json, List, Value

    rows = [{"info": {"x": None}, "list": [{"x": None}, {"y": 1}], "object": {"a": {"x": None}}}]
    features = Features(
        {"info": Json(), "list": List(Json()), "object": {"a": Json(), "b": Value("string")}}
    )
    Dataset.from_list(rows, features=features).save_to_disk(str(tmp_path / "set"))

    assert rows_in(str(tmp_path / "set")) == rows


def test_a_data_set_in_memory_is_read_as_written():
    from datasets import Dataset

    rows = [{"info": {"x": 1}}, {"info": {"y": "s"}}]
    table = rows_as_written(Dataset.from_list(rows))
    stream = rows_as_written(Dataset.from_list(rows).to_iterable_dataset())

    assert (len(table), table[1], list(table)) == (2, rows[1], rows)
    assert list(stream) == rows
    assert rows_as_written(rows) is rows


def test_tasks_that_an_environment_gives_as_a_data_set_are_read_as_written():
    from datasets import Dataset

    rows = [{"info": {"x": 1}}, {"info": {"y": "s"}}]

    counted = made_rows(lambda: Dataset.from_list(rows), "tasks of e")
    streamed = made_rows(lambda: Dataset.from_list(rows).to_iterable_dataset(), "tasks of e")

    assert [counted.row(number) for number in (0, 1)] == rows
    assert [streamed.row(number) for number in (0, 1, 2)] == [*rows, rows[0]]


def test_without_types_every_object_may_be_filled_up():
    row = {"info": {"x": None, "y": [{"z": None}, None]}, "answer": None}

    assert WrittenRows(None).row(row) == {"info": {"y": [{}, None]}, "answer": None}


def test_a_row_of_plain_columns_is_not_copied():
    from datasets import Features, Value

    row = {"prompt": "a", "answer": None}

    assert WrittenRows(Features(prompt=Value("string"), answer=Value("string"))).row(row) is row
