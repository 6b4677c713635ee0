"""Files that are not what their names say, or of kinds that are not read: each is refused with a way to rows."""

import gzip
import json

import pytest

from rlhf_core.errors import DataError
from rlhf_data.source import Unreadable
from rlhf_data.sources import open_source
from rlhf_testing.errors import has_code

ROW = b'{"prompt": "a", "response": "b"}\n'


def refused(tmp_path, name, content):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(DataError, check=has_code("data/unknown-format")) as caught:
        open_source(str(path))
    return str(caught.value).replace(f"{tmp_path}/", "")


@pytest.mark.parametrize(
    ("name", "way"),
    [
        ("a.ndjson", "Call the file a.jsonl"),
        ("a.jsonlines", "Call the file a.jsonl"),
        ("a.pq", "Call the file a.parquet"),
        ("a.tsv", "pandas.read_csv('a.tsv', sep='\\t', dtype=str).to_csv('a.csv', index=False)"),
        ("a.xlsx", "pandas.read_excel('a.xlsx', dtype=str).to_csv('a.csv', index=False)"),
        ("a.arrow", "datasets.Dataset.from_file('a.arrow').to_parquet('a.parquet')"),
        ("a.jsonl.zst", "Unpack it: unzstd a.jsonl.zst"),
        ("a.jsonl.bz2", "Unpack it: bunzip2 a.jsonl.bz2"),
        ("a.jsonl.xz", "Unpack it: unxz a.jsonl.xz"),
        ("my rows.zip", "Unpack it: unzip 'my rows.zip'"),
        ("a.tar", "write a file with a row for each of its samples"),
        ("a.yaml", "Write the rows as JSON, one object a line, into a file a.jsonl"),
        ("a", "Write the rows as JSON, one object a line, into a file a.jsonl"),
    ],
)
def test_a_file_of_another_kind_is_refused_with_the_way_to_one_that_is_read(tmp_path, name, way):
    message = refused(tmp_path, name, b"x")

    assert message.startswith(f"{name}: expected a file that ends with .jsonl, .json, .csv, ")
    assert way in message


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.csv", "a.txt"])
@pytest.mark.parametrize(
    ("content", "kind", "way"),
    [
        (gzip.compress(ROW, mtime=0), "packed by gzip", "Call it NAME.gz"),
        (b"\x28\xb5\x2f\xfdabc", "packed by zstd", "Unpack it: unzstd"),
        (b"PK\x03\x04abc", "a ZIP archive or a workbook", "Unpack it, or save the sheet as CSV"),
        (b"PAR1abc", "a Parquet file", "Call it a.parquet"),
    ],
)
def test_a_file_whose_content_is_another_than_its_name_says_is_refused(
    tmp_path, name, content, kind, way
):
    message = refused(tmp_path, name, content)

    assert message.startswith(f"{name}: expected text, as its name says; the file is {kind}. ")
    assert way.replace("NAME", name) in message


def test_columns_of_lists_are_refused_with_the_way_to_rows(tmp_path):
    path = tmp_path / "a.json"
    path.write_text(json.dumps({"prompt": ["a", "c"], "response": ["b", "d"]}))

    with pytest.raises(
        DataError,
        match=r"a\.json:1: expected rows, got one object of columns, each a list of 2 texts\. Write "
        r"the rows: pandas\.read_json\(.*\)\.to_json\('rows\.jsonl', orient='records', lines=True\)",
        check=has_code("data/malformed-file"),
    ):
        open_source(str(path))


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (
            '{"prompt": "a"},',
            "broken JSON: a comma stands behind the object; leave it out, or write all rows as a list into a file that "
            "ends with .json",
        ),
        (
            "{'prompt': 'a', 'is': None}",
            "broken JSON: the line is an object as Python prints it; write it with json.dumps",
        ),
        ('{"prompt": "a",}', "broken JSON: "),
        ('{"a": 1} {"a": 2}', "broken JSON: Extra data at column 10"),
    ],
)
def test_a_line_that_is_nearly_json_says_what_is_wrong(tmp_path, line, reason):
    path = tmp_path / "a.jsonl"
    path.write_text(line + "\n" + ROW.decode())

    bad, good = open_source(str(path)).scan()

    assert good == json.loads(ROW)
    assert isinstance(bad, Unreadable)
    assert bad.reason.startswith(reason)


def test_a_cell_of_csv_may_be_a_long_document(tmp_path):
    document = "long " * 100_000
    path = tmp_path / "a.csv"
    path.write_text(f"prompt,response\nq,{document}\n")

    assert list(open_source(str(path)).scan()) == [{"prompt": "q", "response": document}]


def test_a_quote_that_never_ends_says_how_many_lines_are_in_its_cell(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text('prompt,response\nq,a\nq,"a\n' + "q,a\n" * 10)

    *_, bad = open_source(str(path)).scan()

    assert isinstance(bad, Unreadable)
    assert bad.reason == (
        "broken CSV: unexpected end of data. All up to line 13 is one cell, whose quote is not closed: close it"
    )
