"""The source `hub_stream`, on files that `datasets` streams as it streams a set of the hub."""

import json
import socket
from types import SimpleNamespace

import datasets
import huggingface_hub.utils._http as client
import pytest
from huggingface_hub import constants

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


@pytest.fixture
def no_hub(tmp_path, monkeypatch):
    """No hub: its port is closed."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"http://127.0.0.1:{server.getsockname()[1]}"
    monkeypatch.setattr(constants, "ENDPOINT", address)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    waits = SimpleNamespace(sleep=lambda seconds: pytest.fail("a request is repeated"))
    monkeypatch.setattr(client, "time", waits)


def test_a_hub_that_cannot_be_reached_is_one_error_at_the_first_request(no_hub):
    source = HubStream(HubStreamConfig(path="some/set", config="main"))

    with pytest.raises(
        DataError, match=r"^some/set:main: .*127", check=has_code("data/hub-unreachable")
    ):
        next(source.rows(0))


def test_a_set_that_was_downloaded_earlier_is_streamed_without_the_hub(no_hub, monkeypatch):
    asked = []

    def load(name, *_, **__):
        asked.append((name, constants.is_offline_mode()))
        return datasets.Dataset.from_dict({"prompt": ["a", "b"]}).to_iterable_dataset()

    monkeypatch.setattr(datasets, "load_dataset", load)
    source = HubStream(HubStreamConfig(path="some/set"))

    assert list(source.rows(1)) == [{"prompt": "b"}]
    assert asked == [("some/set", True)]
