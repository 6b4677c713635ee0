"""Patterns: the rows of all files in the order of their names, each at its own place."""

import json

import pytest

from rlhf_config.checks.data_files import short_name
from rlhf_core.errors import DataError
from rlhf_data.sources import open_source


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

    assert "".join(row["prompt"] for row in source.scan()) == prompts
    assert [source.row(index) for index in range(len(source))] == list(source.scan())
    assert source.where(len(source) - 1).endswith("part-2.jsonl:1")
    assert source.name == "part"


def test_a_pattern_without_a_file_is_refused(folder):
    with pytest.raises(DataError, match=r"shard-\*.jsonl: no file is called so"):
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
