"""The extent of a file that grows is that of the file on the disk, however it came about."""

import hashlib
from contextlib import closing
from dataclasses import asdict

import pytest

from rlhf_core.errors import RLHFError, StorageError
from rlhf_testing.errors import has_code
from rlhf_trainer.durable.records import CHUNK_BYTES, AppendedFile, Extent, RunningDigest
from rlhf_trainer.loop.state import typed


def extent_of(content: bytes) -> Extent:
    return Extent(num_bytes=len(content), sha256=hashlib.sha256(content).hexdigest())


def test_the_extent_follows_what_is_written(tmp_path):
    path = tmp_path / "file"
    with closing(AppendedFile(path)) as file:
        assert file.extent == extent_of(b"")
        for line in ("one", "", "drei ä"):
            file.write_line(line)
            assert file.extent == extent_of(path.read_bytes())

    assert path.read_text(encoding="utf-8") == "one\n\ndrei ä\n"


@pytest.mark.parametrize("known", [0, 1, 5, CHUNK_BYTES, CHUNK_BYTES + 3])
def test_a_file_is_taken_up_where_its_digest_stands(tmp_path, known):
    path = tmp_path / "file"
    path.write_bytes(b"abcde" * CHUNK_BYTES)
    begun = RunningDigest()
    begun.add_file(path, up_to=known)
    assert begun.extent() == extent_of(path.read_bytes()[:known])

    with closing(AppendedFile(path, begun)) as file:
        file.write_line("end")

        assert file.extent == extent_of(path.read_bytes())


def test_a_beginning_longer_than_the_file_ends_with_the_file(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"abc")
    digest = RunningDigest()
    digest.add_file(path, up_to=10)

    assert digest.extent() == extent_of(b"abc")


def test_an_extent_survives_json():
    extent = extent_of(b"abc")

    assert typed(Extent, asdict(extent)) == extent


@pytest.mark.parametrize("replaced", [False, True])
def test_a_file_that_is_gone_gets_no_lines_that_nobody_finds(tmp_path, replaced):
    """What is written to a file that was removed is lost with the process, and that of a moved one is elsewhere."""
    path = tmp_path / "file"
    with closing(AppendedFile(path)) as file:
        file.write_line("one")
        path.rename(tmp_path / "moved")
        if replaced:
            path.write_text("another's\n")
        with pytest.raises(StorageError, match=str(path), check=has_code("run/record-gone")):
            file.write_line("two")
        (tmp_path / "moved").rename(path)
        file.write_line("three")

    assert path.read_text() == "one\nthree\n"


def test_a_full_disk_is_one_message():
    with closing(AppendedFile.__new__(AppendedFile)) as file:
        file.path = "/dev/full"
        file._digest = RunningDigest()
        file._file = open("/dev/full", "wb", buffering=0)  # noqa: SIM115  closed with the other
        with pytest.raises(
            RLHFError, match=r"/dev/full.*No space left", check=has_code("output/not-written")
        ):
            file.write_line("line")
