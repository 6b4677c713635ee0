"""Opening data sets: every format gives the rows that were written, and every mistake names the file."""

import json
import os
import re
import subprocess
import sys

import pytest

from rlhf_config.checks.data_files import short_name, split_name
from rlhf_core.errors import DataError
from rlhf_data.source import AS_UTF8, Unreadable
from rlhf_data.sources import open_source
from rlhf_testing.errors import has_code

ROWS = [
    {"prompt": "a b", "answer": "7"},
    {"prompt": "c", "answer": "007"},
    {"prompt": "é", "answer": ""},
]


def rows_of(source):
    assert [source.row(index) for index in range(len(source))] == list(source.scan())
    return list(source.scan())


@pytest.fixture
def table():
    from datasets import Dataset

    return Dataset.from_list(ROWS)


def test_json_lines_are_read_as_written(write_rows):
    source = open_source(write_rows(ROWS))

    assert rows_of(source) == ROWS
    assert source.name == "rows"
    assert source.where(1).endswith("rows.jsonl:2")


def test_values_of_json_lines_are_not_reinterpreted(write_rows):
    """A date stays text, a column may have several types, and absent keys stay absent."""
    rows = [{"p": "2024-01-02", "n": 1}, {"p": 3}, {"p": [1, "x"], "n": {"deep": None}}]

    assert rows_of(open_source(write_rows(rows))) == rows


def test_blank_lines_are_no_rows_and_keep_line_numbers_right(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'\xef\xbb\xbf\n{"p": "a"}\r\n\n  \n{"p": "b"}\n\n{"p": "c"}')

    source = open_source(str(path))

    assert rows_of(source) == [{"p": "a"}, {"p": "b"}, {"p": "c"}]
    assert [source.where(index).rpartition(":")[2] for index in range(3)] == ["2", "5", "7"]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"p": "a"', "broken JSON"),
        (b"[1, 2]", "expected a JSON object per row, got list"),
        (b'{"p": "\xff"}', "expected UTF-8 text (invalid start byte at byte 8). Convert"),
        (b"[" * 100_000, "unusable JSON"),
        (b'{"p": ' + b"1" * 5000 + b"}", "unusable JSON"),
    ],
)
def test_a_line_that_is_no_object_is_unreadable_and_the_others_are_read(tmp_path, line, reason):
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'{"p": "a"}\n' + line + b'\n{"p": "b"}\n')
    source = open_source(str(path))

    first, bad, last = source.scan()

    assert (first, last) == ({"p": "a"}, {"p": "b"})
    assert isinstance(bad, Unreadable)
    assert reason in bad.reason
    with pytest.raises(DataError, match=r"x\.jsonl:2: ", check=has_code("data/unreadable")):
        source.row(1)


def test_a_file_that_changes_under_a_run_is_noticed(write_rows):
    path = write_rows(ROWS)
    source = open_source(path)
    with open(path, "a") as file:
        file.write("{}\n")

    with pytest.raises(DataError, check=has_code("data/changed-file")):
        source.row(0)


def test_a_replaced_file_is_still_read_as_it_was_opened(write_rows, tmp_path):
    source = open_source(write_rows(ROWS))
    os.replace(write_rows([{"other": 1}], "new.jsonl"), tmp_path / "rows.jsonl")

    assert source.row(0) == ROWS[0]


@pytest.mark.parametrize("spread", [True, False])
def test_a_json_list_knows_the_line_of_each_entry(tmp_path, spread):
    path = tmp_path / "x.json"
    path.write_text('[\n {"p":\n "a"},\n\n {"p": "b"}\n]' if spread else '[{"p": "a"}, {"p": "b"}]')

    source = open_source(str(path))

    assert rows_of(source) == [{"p": "a"}, {"p": "b"}]
    lines = [source.where(index).rpartition(":")[2] for index in range(2)]
    assert lines == (["2", "5"] if spread else ["1", "1"])


def test_a_json_file_may_hold_json_lines(write_rows):
    assert rows_of(open_source(write_rows(ROWS, "x.json"))) == ROWS


@pytest.mark.parametrize(
    ("text", "message", "code"),
    [
        ('[{"p": 1},\n{"p": }]', r"x\.json:2: broken JSON", "data/broken-json"),
        (
            '[{"p": 1}\n{"p": 2}]',
            r"x\.json:2: broken JSON: expected ',' or '\]'",
            "data/broken-json",
        ),
        ('[{"p": 1}] more', "expected nothing after the list's end", "data/after-the-list"),
        ("[]", "the list is empty", "data/no-rows"),
        ("[1,\n2", r"x\.json:2: broken JSON", "data/broken-json"),
    ],
)
def test_a_broken_json_list_is_refused_with_its_line(tmp_path, text, message, code):
    (tmp_path / "x.json").write_text(text)

    with pytest.raises(DataError, match=message, check=has_code(code)):
        open_source(str(tmp_path / "x.json"))


def test_csv_cells_are_text(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text('prompt,answer\n"a ""b"",\nc",007\n\né,1.0\n', encoding="utf-8")

    source = open_source(str(path))

    expected = [{"prompt": 'a "b",\nc', "answer": "007"}, {"prompt": "é", "answer": "1.0"}]
    assert rows_of(source) == expected
    assert [source.where(index).rpartition(":")[2] for index in range(2)] == ["2", "5"]


def test_csv_rows_that_do_not_fit_are_unreadable(tmp_path):
    path = tmp_path / "x.csv"
    path.write_bytes(b"a,b\n1,2\n1\n1,2,3\n\xff,2\n1,4\n")
    source = open_source(str(path))

    rows = list(source.scan())

    assert [rows[0], rows[4]] == [{"a": "1", "b": "2"}, {"a": "1", "b": "4"}]
    reasons = [row.reason for row in rows[1:4]]
    assert reasons == [
        "expected 2 cells as in the header, got 1",
        "expected 2 cells as in the header, got 3",
        f"expected UTF-8 text, got other bytes. {AS_UTF8}",
    ]
    with pytest.raises(
        DataError, match=r"x\.csv:4: expected 2 cells", check=has_code("data/unreadable")
    ):
        source.row(2)


@pytest.mark.parametrize(
    ("text", "message", "code"),
    [
        ("a,b\n", "no rows after the header", "data/no-rows"),
        ("a,a\n1,2\n", "two columns are called 'a'", "data/repeated-column"),
        ("\n1,2\n", "expected a header line", "data/malformed-header"),
    ],
)
def test_a_csv_file_without_header_or_rows_is_refused(tmp_path, text, message, code):
    (tmp_path / "x.csv").write_text(text)

    with pytest.raises(DataError, match=message, check=has_code(code)):
        open_source(str(tmp_path / "x.csv"))


def test_a_quote_that_never_ends_is_one_unreadable_row(tmp_path):
    (tmp_path / "x.csv").write_text('a,b\n1,2\n"1,2\n3,4\n')

    rows = list(open_source(str(tmp_path / "x.csv")).scan())

    assert rows[0] == {"a": "1", "b": "2"}
    assert [type(row) for row in rows[1:]] == [Unreadable]
    assert "broken CSV" in rows[1].reason


def test_parquet_is_read_as_written(tmp_path, table, datasets_cache):
    table.to_parquet(tmp_path / "x.parquet")

    source = open_source(str(tmp_path / "x.parquet"))

    assert rows_of(source) == ROWS
    assert source.where(2).endswith("x.parquet:row 3")


def test_a_saved_folder_is_read_as_written(tmp_path, table):
    table.save_to_disk(tmp_path / "saved")

    assert rows_of(open_source(str(tmp_path / "saved"))) == ROWS


def test_a_saved_folder_with_splits_gives_the_one_asked_for_and_says_so(tmp_path, table, caplog):
    from datasets import DatasetDict

    DatasetDict(train=table, test=table.select([1])).save_to_disk(tmp_path / "saved")

    with caplog.at_level("INFO"):
        assert rows_of(open_source(str(tmp_path / "saved"), split="test")) == [ROWS[1]]
    assert "saved: the split test is read, of train, test" in caplog.text
    with pytest.raises(
        DataError,
        match=r"no split 'validation'; it has train, test",
        check=has_code("data/unknown-split"),
    ):
        open_source(str(tmp_path / "saved"), split="validation")


def test_a_folder_of_data_files_is_read(tmp_path, table, datasets_cache):
    (tmp_path / "set").mkdir()
    table.to_parquet(tmp_path / "set" / "train.parquet")

    assert rows_of(open_source(str(tmp_path / "set"))) == ROWS


def test_a_scan_may_leave_out_columns_that_were_not_asked_for(tmp_path, table):
    table.save_to_disk(tmp_path / "saved")
    source = open_source(str(tmp_path / "saved"))

    assert list(source.scan(["answer"])) == [{"answer": row["answer"]} for row in ROWS]
    assert list(source.scan(["answer", "absent"])) == ROWS


@pytest.mark.parametrize(
    ("name", "content", "message", "code"),
    [
        ("x.jsonl", b"", "the file is empty", "data/no-rows"),
        ("x.jsonl", b"\n \n", "only blank lines", "data/no-rows"),
        ("x.md", b"text", r"expected a file that ends with .*got '\.md'", "data/unknown-format"),
        (
            "x.parquet",
            b"not parquet",
            r"x\.parquet: expected a Parquet file",
            "data/unreadable-file",
        ),
        ("x.json", b"[\xff]", r"x\.json:1: expected UTF-8.*iconv", "data/not-utf8"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused(
    tmp_path, datasets_cache, name, content, message, code
):
    (tmp_path / name).write_bytes(content)

    with pytest.raises(DataError, match=message, check=has_code(code)):
        open_source(str(tmp_path / name))


def test_a_missing_file_suggests_the_nearest(write_rows, tmp_path):
    write_rows(ROWS, "train.jsonl")

    with pytest.raises(DataError, match=r"train\.jsonl", check=has_code("data/file-not-found")):
        open_source(str(tmp_path / "trian.jsonl"))


def test_a_folder_without_data_is_refused(tmp_path, datasets_cache):
    (tmp_path / "empty").mkdir()

    with pytest.raises(DataError, match="save_to_disk", check=has_code("data/unreadable-file")):
        open_source(str(tmp_path / "empty"))


@pytest.mark.parametrize("spec", ["rows.jsonl[:50%]", "./rows[10:]", "openai/gsm8k:main[:100]"])
def test_a_slice_is_refused_with_the_options_for_a_part(spec):
    whole = re.escape(spec.partition("[")[0])
    with pytest.raises(
        DataError,
        match=rf"got a slice of one\. Give {whole}, with --data\.max_samples",
        check=has_code("data/unknown-format"),
    ):
        open_source(spec)


def test_what_is_neither_path_nor_hub_name_is_refused():
    with pytest.raises(DataError, check=has_code("data/unknown-format")):
        open_source("what is this?")


def test_a_hub_set_without_a_network_says_what_to_do():
    """In a process of its own: the offline switch of the libraries is read when they are imported."""
    code = (
        "from rlhf_data.sources import open_source\n"
        "from rlhf_core.errors import DataError\n"
        "try:\n    open_source('somebody/something:main')\n"
        "except DataError as error:\n    print(error)\n"
    )
    environment = os.environ | {"HF_HUB_OFFLINE": "1"}
    result = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )

    assert "somebody/something:main: expected a data set on the hub" in result.stdout
    assert "Without a network, save_to_disk the set elsewhere and give the folder" in result.stdout


@pytest.mark.parametrize(
    ("spec", "name"),
    [("a/b/train.jsonl", "train"), ("openai/gsm8k:main", "gsm8k"), ("imdb", "imdb")],
)
def test_short_names(spec, name):
    assert short_name(spec) == name


@pytest.mark.parametrize(
    ("entry", "parts"),
    [
        ("easy=a/b.jsonl", ("easy", "a/b.jsonl")),
        ("a/b.jsonl", (None, "a/b.jsonl")),
        ("./x=y.jsonl", (None, "./x=y.jsonl")),
        ("gsm=openai/gsm8k:main", ("gsm", "openai/gsm8k:main")),
    ],
)
def test_a_set_can_be_named(entry, parts):
    assert split_name(entry) == parts


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for number, rows in ((2, ["c"]), (1, ["a", "b"])):
        lines = "".join(f"{json.dumps({'prompt': row})}\n" for row in rows)
        (tmp_path / f"part-{number}.jsonl").write_text(lines)
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / "deep" / "er" / "part-3.jsonl").write_text('{"prompt": "d"}\n')
    return tmp_path


@pytest.mark.parametrize(
    ("pattern", "prompts"), [("part-*.jsonl", "abc"), ("**/part-?.jsonl", "dabc")]
)
def test_a_pattern_is_one_set(folder, pattern, prompts):
    source = open_source(pattern)

    assert "".join(row["prompt"] for row in rows_of(source)) == prompts
    assert source.where(len(source) - 1).endswith("part-2.jsonl:1")
    assert source.name == "part"


def test_a_pattern_without_a_file_is_refused(folder):
    with pytest.raises(DataError, match=r"shard-\*\.jsonl", check=has_code("data/file-not-found")):
        open_source("shard-*.jsonl")


@pytest.mark.parametrize(
    ("pattern", "name"),
    [("data/train-*.jsonl", "train"), ("data/*.txt", "data"), ("*.txt", "files")],
)
def test_a_pattern_is_named_by_what_its_files_have_in_common(pattern, name):
    assert short_name(pattern) == name


def test_a_file_with_the_characters_of_a_pattern_is_a_file(folder):
    (folder / "a[1].jsonl").write_text('{"prompt": "x"}\n')

    assert list(open_source("a[1].jsonl").scan()) == [{"prompt": "x"}]
