"""Failed writes: every form in which libraries report them is one error, and nothing is left."""

import errno
import resource
import signal
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from rlhf_core import CheckpointError, StorageError
from rlhf_core.storage.writing import (
    failed_writes_named,
    is_full,
    made_whole,
    reason_of,
    write_text_atomically,
    writing,
    written_whole,
)
from rlhf_testing.errors import has_code

FULL = OSError(errno.ENOSPC, "No space left on device")


def half(folder, failure):
    """Write a part of a file and of a folder, and fail."""
    file, more = folder / "model.tmp", folder / "more"
    with writing("the model", file, more, advice="Wait"):
        file.write_text("half")
        (more / "in").mkdir(parents=True)
        raise failure


def test_a_failed_write_is_named_and_its_files_are_gone(tmp_path):
    with pytest.raises(StorageError) as told:
        half(tmp_path, FULL)

    expected = "the model could not be written: No space left on device. Make room there, and start again. Wait"
    assert str(told.value) == expected
    assert list(tmp_path.iterdir()) == []


def test_another_failure_is_passed_on_and_leaves_nothing_either(tmp_path):
    with pytest.raises(ZeroDivisionError):
        half(tmp_path, ZeroDivisionError())

    assert list(tmp_path.iterdir()) == []


def test_an_error_with_a_name_keeps_it():
    with (
        pytest.raises(
            CheckpointError, match=r"^it could not", check=has_code("output/not-written")
        ),
        writing("it", error=CheckpointError),
    ):
        raise FULL
    with (
        pytest.raises(CheckpointError, match=r"^damaged$", check=has_code("checkpoint/invalid")),
        writing("it"),
    ):
        raise CheckpointError("damaged")


@pytest.mark.parametrize(
    ("failure", "reason"),
    [
        (FULL, "No space left on device. Make room there, and start again"),
        (OSError(errno.EACCES, "Permission denied"), "Permission denied"),
        (OSError("gone"), "gone"),
        (
            Exception("I/O error: ... (os error 28)"),
            "No space left on device. Make room there, and start again",
        ),
        (
            Exception("[Errno 122] Disk quota exceeded"),
            "Disk quota exceeded. Make room there, and start again",
        ),
        (StorageError("policy rank 1: no room"), "policy rank 1: no room"),
        (CheckpointError("damaged"), None),
        (ValueError("a shape"), None),
        (KeyboardInterrupt(), None),
    ],
)
def test_a_failed_write_is_told_from_other_failures(failure, reason):
    assert reason_of(failure) == reason


@pytest.mark.parametrize(
    ("failure", "full"),
    [
        (FULL, True),
        (Exception("I/O error: ... (os error 27)"), True),
        (OSError(errno.EACCES, "Permission denied"), False),
        (StorageError("No space left on device (os error 28)"), False),
        (ValueError("a shape"), False),
    ],
)
def test_a_library_that_finds_no_room_is_told_from_others(failure, full):
    assert is_full(failure) is full


@pytest.mark.parametrize("error", [StorageError, CheckpointError])
def test_a_reason_goes_alone_to_who_says_what_was_written(error):
    expected = r"^the model could not be written: No space left on device\. Make"
    with (
        pytest.raises(error, match=expected),
        writing("the model", error=error),
        failed_writes_named(),
        failed_writes_named(),
    ):
        raise FULL


def test_what_was_written_is_said_once_by_who_wrote_it_but_for_the_class():
    inner = StorageError("rows.gz could not be written: no room")

    with (
        pytest.raises(
            StorageError, match=r"^rows\.gz could not", check=has_code("output/not-written")
        ),
        writing("the cache"),
    ):
        raise inner
    with (
        pytest.raises(
            CheckpointError,
            match=r"^the checkpoint could not be written: rows\.gz",
            check=has_code("output/not-written"),
        ),
        writing("the checkpoint", error=CheckpointError),
    ):
        raise inner


def test_an_error_that_is_no_failed_write_keeps_its_class():
    with pytest.raises(ZeroDivisionError), failed_writes_named():
        raise ZeroDivisionError


def _too_large(folder: str, kind: str) -> str:
    """Write more than a file may have, and return what became of it."""
    from pathlib import Path

    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
    path = Path(folder, "file")
    words = {f"word{n}": n for n in range(5000)}
    try:
        match kind:
            case "safetensors":
                with writing("it", path):
                    save_file({"a": torch.zeros(20_000)}, path)
            case "tokenizers":
                with writing("it", path):
                    Tokenizer(WordLevel(words, "word0")).save(str(path))
            case "torch":
                with writing("it", path):
                    torch.save({"a": torch.zeros(20_000)}, path)
            case "text":
                write_text_atomically(path, "x" * 20_000)
    except StorageError as error:
        return f"{error} {[one.name for one in Path(folder).iterdir()]}"
    return "written"


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("safetensors", "File too large"),
        ("tokenizers", "File too large"),
        ("text", "File too large"),
        ("torch", "torch wrote a part of it, as on a full disk"),
    ],
)
def test_the_writers_of_libraries_report_a_file_without_room(tmp_path, kind, reason):
    """With a limit on a file's size, as on a full disk, in a process of its own."""
    with ProcessPoolExecutor(1, mp_context=get_context("fork")) as pool:
        told = pool.submit(_too_large, str(tmp_path), kind).result()

    assert f"could not be written: {reason}. Make room there, and start again" in told
    assert told.endswith(" []")


def test_a_file_has_its_name_once_all_of_it_is_there(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text("old")

    with written_whole(path) as file:
        file.write(b"new")
        assert path.read_text() == "old"

    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("error", [ValueError("bad row"), KeyboardInterrupt()])
def test_a_body_that_fails_leaves_what_was_there(tmp_path, error):
    path = tmp_path / "rows.jsonl"
    path.write_text("old")

    def rows():
        yield b"half"
        raise error

    with pytest.raises(type(error)), written_whole(path) as file:
        file.writelines(rows())

    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_has_its_name_once_all_of_it_is_there(tmp_path):
    path = tmp_path / "model"
    (path / "old").mkdir(parents=True)

    with made_whole(path) as made:
        made.mkdir()
        (made / "weights").write_text("new")
        assert (path / "old").is_dir()

    assert [one.name for one in path.iterdir()] == ["weights"]
    assert list(tmp_path.iterdir()) == [path]


def test_two_that_make_a_file_at_once_do_not_meet(tmp_path):
    path = tmp_path / "image"

    with made_whole(path, at_once=True) as first:
        first.write_text("first")
        with made_whole(path, at_once=True) as second:
            second.write_text("second")
        assert path.read_text() == "second"

    assert path.read_text() == "first"
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_without_room_is_named(tmp_path):
    path = tmp_path / "rows.jsonl"

    with (
        pytest.raises(
            StorageError, match=r"rows\.jsonl.*No space left", check=has_code("output/not-written")
        ),
        written_whole(path),
    ):
        raise OSError(errno.ENOSPC, "")

    assert list(tmp_path.iterdir()) == []
