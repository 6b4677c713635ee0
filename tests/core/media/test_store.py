"""The store: each image once, whole or not at all, and never other bytes than were kept."""

import hashlib
import os
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.images import noisy, saved

from rlhf_core.errors import DataError
from rlhf_core.media.inspecting import MediaLimits
from rlhf_core.media.problem import MediaProblem
from rlhf_core.media.reference import MediaRef
from rlhf_core.media.store import MediaStore, reference_of


def test_a_reference_names_the_content():
    content = saved(noisy(20, 12))

    reference = reference_of(content, MediaLimits())

    assert reference == MediaRef(
        sha256=hashlib.sha256(content).hexdigest(),
        num_bytes=len(content),
        format="png",
        width=20,
        height=12,
    )
    assert MediaRef.of(reference.fields()) == reference


@pytest.mark.parametrize(
    "change",
    [{"sha256": "x"}, {"format": "gif"}, {"width": 0}, {"height": True}, {"more": 1}],
)
def test_other_values_are_no_reference(change):
    fields = reference_of(saved(noisy()), MediaLimits()).fields() | change

    with pytest.raises(MediaProblem, match="reference to an image"):
        MediaRef.of(fields)


def test_what_was_put_is_read(tmp_path):
    store, content = MediaStore(tmp_path / "media"), saved(noisy())
    reference = reference_of(content, MediaLimits())

    store.put(content, reference)

    assert store.read(reference) == content


def test_an_image_is_written_once(tmp_path):
    store, content = MediaStore(tmp_path), saved(noisy())
    reference = reference_of(content, MediaLimits())
    store.put(content, reference)
    before = os.stat(store.path(reference))

    store.put(content, reference)

    after = os.stat(store.path(reference))
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_many_writers_leave_one_file(tmp_path):
    store, content = MediaStore(tmp_path), saved(noisy())
    reference = reference_of(content, MediaLimits())

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: store.put(content, reference), range(32)))

    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [store.path(reference)]


def test_a_write_that_fails_leaves_nothing(tmp_path, monkeypatch):
    store, content = MediaStore(tmp_path), saved(noisy())
    reference = reference_of(content, MediaLimits())

    def full(descriptor: int) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="no space"):
        store.put(content, reference)

    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_changed_and_lost_files_are_named(tmp_path):
    store, content = MediaStore(tmp_path), saved(noisy())
    reference = reference_of(content, MediaLimits())
    store.put(content, reference)
    path = store.path(reference)

    path.write_bytes(content[:-1] + b"x")
    with pytest.raises(DataError, match=f"{reference.sha256}.png: the image's bytes changed"):
        store.read(reference)
    path.unlink()
    with pytest.raises(DataError, match="cannot be read"):
        store.read(reference)
