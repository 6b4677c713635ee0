"""Files packed by gzip: the rows and places of the plain file, and nothing left behind."""

import errno
import gzip
import json
import shutil
import tempfile

import pytest

from rlhf_config.checks.data_files import short_name
from rlhf_core.errors import DataError, StorageError
from rlhf_data.sources import open_source
from rlhf_testing.errors import has_code

ROWS = [{"prompt": "a", "n": 1}, {"prompt": "é"}]
LINES = "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in ROWS)


@pytest.mark.parametrize(
    ("name", "text", "rows"),
    [
        ("a.jsonl.gz", LINES, ROWS),
        ("a.json.gz", json.dumps(ROWS), ROWS),
        ("a.csv.gz", "prompt,n\na,1\n", [{"prompt": "a", "n": "1"}]),
        ("a.txt.gz", "one\ntwo\n", [{"text": "one\ntwo\n"}]),
    ],
)
def test_a_packed_file_has_the_rows_of_the_plain_one(tmp_path, monkeypatch, name, text, rows):
    (tmp_path / "unpacked").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "unpacked"))
    path = tmp_path / name
    path.write_bytes(gzip.compress(text.encode()))

    source = open_source(str(path))

    assert [source.row(index) for index in range(len(source))] == list(source.scan()) == rows
    assert source.where(0).startswith(f"{path}:")
    assert (source.name, short_name(str(path))) == ("a", "a")
    del source
    assert list((tmp_path / "unpacked").iterdir()) == []


@pytest.mark.parametrize("cut", [10, -4])
def test_a_damaged_file_is_named(tmp_path, cut):
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(LINES.encode())[:cut])

    with pytest.raises(DataError, match=r"a\.jsonl\.gz", check=has_code("data/not-gzip")):
        open_source(str(path))


def test_a_full_folder_of_temporary_files_is_not_the_file_s_fault(tmp_path, monkeypatch):
    (tmp_path / "unpacked").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "unpacked"))
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(LINES.encode()))

    def full(source, target, length):
        target.write(b"half")
        raise OSError(errno.ENOSPC, "")

    monkeypatch.setattr(shutil, "copyfileobj", full)
    with pytest.raises(StorageError, match="No space left", check=has_code("output/not-written")):
        open_source(str(path))

    assert list((tmp_path / "unpacked").iterdir()) == []


def test_a_packed_file_of_an_unknown_kind_is_refused(tmp_path):
    (tmp_path / "a.parquet.gz").write_bytes(gzip.compress(b"x"))

    with pytest.raises(DataError, match=r"'\.gz'", check=has_code("data/unknown-format")):
        open_source(str(tmp_path / "a.parquet.gz"))
