"""The source `jsonl_stream`: a file that grows, lines that are not whole yet, and lines that are none."""

from types import SimpleNamespace

import pytest

from rlhf_core import ConfigError, DataError
from rlhf_plugin_sources import jsonl_stream
from rlhf_plugin_sources.jsonl_stream import COMPONENT, JsonlStream, JsonlStreamConfig
from rlhf_testing.conformance import run_checks
from rlhf_testing.errors import has_code


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"n": 0}\n\n{"n": 1}\n  \n{"n": 2}\n')
    return path


def read(path, start=0, **options):
    source = JsonlStream(JsonlStreamConfig(path=str(path), **options))
    return [row["n"] for row in source.rows(start)]


def test_it_keeps_the_promises_of_a_source(file):
    outcomes = run_checks("rlhf_data_sources", COMPONENT, path=str(file))

    assert len(outcomes) > 4
    assert [outcome for outcome in outcomes if outcome.failed] == []


@pytest.mark.parametrize(("start", "found"), [(0, [0, 1, 2]), (2, [2]), (3, []), (99, [])])
def test_rows_are_counted_without_blank_lines(file, start, found):
    assert read(file, start) == found


def test_a_last_line_without_a_newline_is_a_row_once_it_is_whole(file):
    file.write_text('{"n": 0}\n{"n": 1}')

    assert read(file) == [0, 1]


def test_a_line_that_is_not_whole_at_the_end_is_named_with_the_way_out(file):
    file.write_text('{"n": 0}\n{"n": ')

    with pytest.raises(DataError, match=r"rows\.jsonl.*wait_s", check=has_code("data/half-a-line")):
        read(file)


def test_rows_that_are_appended_while_it_waits_are_read(file, monkeypatch):
    """Another program writes a part of a row each time the source waits; its clock goes on while it waits, only."""
    parts, now = ['{"n": ', "3}\n"], 0.0

    def append(seconds):
        nonlocal now
        if parts:
            with open(file, "a") as out:
                out.write(parts.pop(0))
        now += seconds

    monkeypatch.setattr(jsonl_stream, "time", SimpleNamespace(monotonic=lambda: now, sleep=append))

    assert read(file, wait_s=2.0) == [0, 1, 2, 3]
    assert now >= 2.0
    assert parts == []


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{broken}", r"rows.jsonl:row 2: expected a JSON object; broken JSON"),
        ("[1]", r"rows.jsonl:row 2: expected a JSON object; expected an object, got list"),
        ('"text"', r"rows.jsonl:row 2: expected a JSON object; expected an object, got str"),
    ],
)
def test_a_line_that_is_no_row_is_named(file, line, said):
    file.write_text(f'{{"n": 0}}\n{line}\n{{"n": 2}}\n')

    with pytest.raises(DataError, match=said, check=has_code("data/not-an-object")):
        read(file)


def test_bytes_that_are_no_text_are_named(file):
    file.write_bytes(b'{"n": 0}\n{"n": "\xff"}\n')

    with pytest.raises(DataError, match=r"rows\.jsonl:row 2", check=has_code("data/not-an-object")):
        read(file)


def test_a_file_that_is_not_there_is_refused_before_the_run_and_named_in_it(tmp_path):
    config = JsonlStreamConfig(path=str(tmp_path / "none.jsonl"))

    with pytest.raises(ConfigError, match=r"none\.jsonl", check=has_code("data/file-not-found")):
        config.check_outside()
    with pytest.raises(
        DataError, match=r"none\.jsonl.*No such file", check=has_code("data/unreadable-file")
    ):
        next(JsonlStream(config).rows(0))
