"""Files in a layout that is nearly one that is read: each is refused with what was expected, what came, and the fix."""

import json

import pytest

from rlhf_core.errors import DataError
from rlhf_data.rows import PromptFormat, RowProblem
from rlhf_data.source import Unreadable
from rlhf_data.sources import open_source
from rlhf_testing.errors import has_code

ROWS = [{"prompt": "a", "response": "b"}, {"prompt": "c", "response": "d"}]
PRETTY = "".join(json.dumps(row, indent=2) + "\n" for row in ROWS)


def refused(tmp_path, name, text):
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(DataError, check=lambda error: error.code.startswith("data/")) as caught:
        open_source(str(path))
    return str(caught.value).replace(f"{tmp_path}/", "")


@pytest.mark.parametrize("name", ["a.jsonl", "a.json"])
def test_objects_over_several_lines_are_refused_with_the_way_to_one_line_each(tmp_path, name):
    message = refused(tmp_path, name, PRETTY)

    assert message == (
        f"{name}:1: expected one JSON object a line; the first one is on lines 1 to 4. Write each row on one line: "
        f"jq -c . {name} > one_a_line.jsonl"
    )


@pytest.mark.parametrize("indent", [None, 1])
def test_a_list_in_a_file_of_lines_is_refused_with_the_name_that_it_needs(tmp_path, indent):
    message = refused(tmp_path, "a.jsonl", json.dumps(ROWS, indent=indent))

    assert message == (
        "a.jsonl:1: expected one JSON object a line, got a list of 2 rows. Name the file a.json: it may hold a list"
    )


@pytest.mark.parametrize("name", ["a.jsonl", "a.json"])
@pytest.mark.parametrize("indent", [None, 1])
def test_an_object_around_the_rows_is_refused_with_the_way_to_its_list(tmp_path, name, indent):
    message = refused(tmp_path, name, json.dumps({"version": "1.1", "data": ROWS}, indent=indent))

    assert message == (
        f"{name}:1: expected rows, got one object whose 'data' is a list of 2 rows. Write the list alone: "
        f"jq .data {name} > rows.json"
    )


@pytest.mark.parametrize(
    "row",
    [
        {"messages": [{"role": "user", "content": "a"}]},
        {"prompt": "a", "data": [{"b": 1}]},
        {"data": []},
        {"data": ["a"]},
    ],
)
def test_one_row_with_a_list_is_a_row(tmp_path, row):
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps(row))

    assert open_source(str(path)).row(0) == row


def test_a_broken_first_line_leaves_the_others_readable(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"prompt": "a\n{"prompt": "b"}\n')

    broken, row = open_source(str(path)).scan()

    assert isinstance(broken, Unreadable)
    assert row == {"prompt": "b"}


TWICE = '{"prompt": "a", "prompt": "b", "response": "c"}'


def test_a_key_that_a_line_has_twice_makes_it_a_bad_row(tmp_path):
    """Python's reader would keep the last value, and drop the first without a word."""
    path = tmp_path / "a.jsonl"
    path.write_text(
        f'{TWICE}\n{{"messages": [{{"role": "user", "role": "system"}}]}}\n{{"a": 1}}\n'
    )

    first, second, third = open_source(str(path)).scan()

    assert first == Unreadable(
        "the key 'prompt' is there twice; leave one of them out", "repeated key"
    )
    assert second == Unreadable(
        "the key 'role' is there twice; leave one of them out", "repeated key"
    )
    assert third == {"a": 1}


def test_a_key_that_an_entry_of_a_list_has_twice_is_refused_with_its_line(tmp_path):
    message = refused(tmp_path, "a.json", f"[\n{TWICE}]")

    assert message == "a.json:2: the key 'prompt' is there twice; leave one of them out"


@pytest.mark.parametrize("mark", [";", "\t", "|"])
def test_cells_that_no_comma_separates_are_refused_with_the_separator(tmp_path, mark):
    message = refused(tmp_path, "a.csv", f"prompt{mark}response\na{mark}b\n")

    assert message == (
        f"a.csv:1: expected columns separated by commas; the header has none, but {mark!r}: "
        f"{f'prompt{mark}response'!r}. Write the table with commas, as by "
        f"pandas.read_csv('a.csv', sep={mark!r}, dtype=str).to_csv('with_commas.csv', index=False)"
    )


def test_a_table_without_rows_is_refused_as_such(tmp_path):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as parquet

    path = tmp_path / "a.parquet"
    parquet.write_table(pa.table({"prompt": pa.array([], pa.string())}), path)

    with pytest.raises(DataError, match=r"a\.parquet", check=has_code("data/no-rows")):
        open_source(str(path))


def test_a_folder_with_files_of_two_kinds_is_refused_with_a_pattern(tmp_path, datasets_cache):
    """The library would read the kind with the most files, and leave the others out without a word."""
    (tmp_path / "a.jsonl").write_text(json.dumps(ROWS[0]) + "\n")
    (tmp_path / "part").mkdir()
    (tmp_path / "part" / "b.csv").write_text("prompt\nx\n")

    with pytest.raises(DataError, check=has_code("data/unknown-format")) as caught:
        open_source(str(tmp_path))

    assert str(caught.value) == (
        f"{tmp_path}: expected data files of one kind, got .csv and .jsonl, such as part/b.csv and a.jsonl. "
        f"Name those to read by a pattern, as in '{tmp_path}/*.jsonl'"
    )


def test_a_folder_whose_files_have_other_columns_is_refused_with_a_pattern(
    tmp_path, datasets_cache
):
    (tmp_path / "a.jsonl").write_text('{"prompt": "a"}\n')
    (tmp_path / "b.jsonl").write_text('{"question": [1]}\n')

    with pytest.raises(DataError, match="by a pattern", check=has_code("data/unreadable-file")):
        open_source(str(tmp_path))


MESSAGES = "[{'role': 'user', 'content': 'it\\'s'}]"


def test_a_cell_with_what_python_prints_is_named():
    with pytest.raises(RowProblem) as caught:
        PromptFormat().prompt({"messages": MESSAGES})

    assert caught.value.reason == (
        "expected a column 'prompt'; the row has messages. Set --data.prompt_key or --data.template. Column "
        "'messages' has a list as Python prints it, which is no JSON; write it with json.dumps"
    )


@pytest.mark.parametrize(
    "text",
    [
        MESSAGES,
        "[{'content': 'Hi', 'role': 'user'}\n {'content': 'Ho', 'role': 'assistant'}]",  # of numpy
        " [{'from': 'human', 'value': 'Hi'}]",
    ],
)
def test_messages_that_python_printed_are_no_prompt(text):
    """As ``DataFrame.to_csv`` writes them: the model would read quotes and braces."""
    for prompts in (PromptFormat(), PromptFormat(chat=True), PromptFormat(template="{prompt}")):
        with pytest.raises(RowProblem, match=r"as Python prints them.*json\.dumps") as caught:
            prompts.prompt({"prompt": text})
        assert caught.value.kind == "printed messages"


@pytest.mark.parametrize(
    "text",
    [
        "[{'a': 1}] is what?",
        "Say [{'role': 'user'}]",
        "[1]",
        "[{'from': 'A', 'to': 'B', 'cost': 3}, {'from': 'B', 'to': 'C', 'cost': 1}]\nWhat is the cheapest path?",
        "[{'from': 'A', 'to': 'B', 'cost': 3}]",
        "[{'role': 'admin', 'id': 1}, {'role': 'user', 'id': 2}]. Write a one-liner",
        "[{'role': 'admin', 'id': 1}]",
        "[{'role': 'user', 'content': 'Hi'}] is which form?",
    ],
)
def test_other_lists_in_a_prompt_are_text(text):
    assert PromptFormat().prompt({"prompt": text}) == text


def test_a_number_as_prompt_says_how_it_is_a_text():
    with pytest.raises(RowProblem) as caught:
        PromptFormat().prompt({"prompt": 0})

    assert caught.value.reason == (
        "expected text or a list of chat messages in column 'prompt', got int 0; write it as text, \"0\""
    )
