"""The source `hub_stream`, on files that `datasets` streams as it streams a set of the hub."""

import json

import pytest

from rlhf_core import DataError
from rlhf_plugin_sources.hub_stream import COMPONENT, HubStream, HubStreamConfig
from rlhf_testing.conformance import run_checks
from rlhf_testing.errors import has_code


@pytest.fixture
def files(tmp_path):
    paths = []
    for part in range(2):
        path = tmp_path / f"part{part}.jsonl"
        path.write_text("".join(json.dumps({"n": 10 * part + n}) + "\n" for n in range(3)))
        paths.append(str(path))
    return tuple(paths)


def test_it_keeps_the_promises_of_a_source(files):
    outcomes = run_checks("rlhf_data_sources", COMPONENT, path="json", files=files)

    assert len(outcomes) > 4
    assert [outcome for outcome in outcomes if outcome.failed] == []


@pytest.mark.parametrize(("start", "found"), [(0, [0, 1, 2, 10, 11, 12]), (4, [11, 12]), (6, [])])
def test_rows_of_all_files_come_in_order_from_any_number(files, start, found):
    source = HubStream(HubStreamConfig(path="json", files=files))

    assert [row["n"] for row in source.rows(start)] == found
    assert source.where(4).endswith("part1.jsonl[train]:row 5")


def test_rows_are_streamed_as_they_were_written(tmp_path):
    from pyarrow import Table, parquet

    rows = [{"info": {"x": "1"}, "answer": None}, {"info": {"y": [None, 1]}, "answer": "4"}]
    parquet.write_table(Table.from_pylist(rows), tmp_path / "rows.parquet")
    source = HubStream(HubStreamConfig(path="parquet", files=(str(tmp_path / "rows.parquet"),)))

    assert list(source.rows(0)) == rows
    assert list(source.rows(1)) == rows[1:]


def test_a_set_that_cannot_be_streamed_is_named(tmp_path):
    source = HubStream(HubStreamConfig(path="json", files=(str(tmp_path / "none.jsonl"),)))

    with pytest.raises(
        DataError, match=r"none\.jsonl\[train\]", check=has_code("data/stream-failed")
    ):
        next(source.rows(0))
