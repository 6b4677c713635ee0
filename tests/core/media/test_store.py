"""The store: each image once, whole or not at all, a file where it is, and never other bytes than were kept."""

import errno
import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from tests.images import noisy, reference_of, saved

from rlhf_core.errors import DataError, StorageError
from rlhf_core.media.problem import MediaProblem
from rlhf_core.media.reference import MediaRef, PixelLimits
from rlhf_core.media.store import MediaStore
from rlhf_testing.errors import has_code


def test_a_reference_names_the_content():
    content = saved(noisy(20, 12))

    reference = reference_of(content)

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
    [{"sha256": "x"}, {"format": "svg"}, {"width": 0}, {"height": True}, {"more": 1}],
)
def test_other_values_are_no_reference(change):
    fields = reference_of(saved(noisy())).fields() | change

    with pytest.raises(MediaProblem, match="reference to an image"):
        MediaRef.of(fields)


def test_what_was_put_is_read(tmp_path):
    store, content = MediaStore(tmp_path / "media"), saved(noisy())
    reference = reference_of(content)

    store.put(content, reference)

    assert store.read(reference) == content


def test_an_image_is_written_once(tmp_path):
    store, content = MediaStore(tmp_path), saved(noisy())
    reference = reference_of(content)
    store.put(content, reference)
    before = os.stat(store.path(reference))

    store.put(content, reference)

    after = os.stat(store.path(reference))
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_many_writers_leave_one_file(tmp_path):
    store, content = MediaStore(tmp_path), saved(noisy())
    reference = reference_of(content)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: store.put(content, reference), range(32)))

    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [store.path(reference)]


def test_a_write_that_fails_leaves_nothing(tmp_path, monkeypatch):
    store, content = MediaStore(tmp_path), saved(noisy())
    reference = reference_of(content)

    def full(descriptor: int) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(
        StorageError, match=r"an image of this run.*no space", check=has_code("output/not-written")
    ):
        store.put(content, reference)

    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_a_link_without_room_leaves_nothing(tmp_path, monkeypatch):
    store, reference = MediaStore(tmp_path), reference_of(saved(noisy()))

    def full(*names):
        raise OSError(errno.ENOSPC, "")

    monkeypatch.setattr(os, "symlink", full)
    with pytest.raises(
        StorageError, match=r"an image of this run.*No space", check=has_code("output/not-written")
    ):
        store.link(tmp_path / "a.png", reference)

    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_changed_and_lost_files_are_named(tmp_path):
    store, content = MediaStore(tmp_path), saved(noisy())
    reference = reference_of(content)
    store.put(content, reference)
    path = store.path(reference)

    path.write_bytes(content[:-1] + b"x")
    with pytest.raises(
        DataError, match=f"{reference.sha256}.png", check=has_code("data/image-changed")
    ):
        store.read(reference)
    path.unlink()
    with pytest.raises(DataError, check=has_code("data/image-lost")):
        store.read(reference)


def test_an_image_that_is_a_file_stays_there_and_is_read_through_a_link(tmp_path):
    store, content = MediaStore(tmp_path / "media"), saved(noisy())
    reference = reference_of(content)
    origins = [tmp_path / "a.png", tmp_path / "b.png"]
    for origin in origins:
        origin.write_bytes(content)

    store.link(origins[0], reference)
    assert os.readlink(store.path(reference)) == str(origins[0])
    assert store.read(reference) == content
    store.link(origins[1], reference)  # the same bytes elsewhere: that file is known to be right
    assert os.readlink(store.path(reference)) == str(origins[1])

    origins[1].write_bytes(saved(noisy(8, 8)))
    with pytest.raises(
        DataError,
        match=r"b\.png, the image behind.*--data\.copy_images",
        check=has_code("data/image-changed"),
    ):
        store.read(reference)
    origins[1].unlink()
    with pytest.raises(
        DataError, match=r"b\.png, the image behind", check=has_code("data/image-lost")
    ):
        store.read(reference)
    store.put(content, reference)
    assert store.read(reference) == content


def test_an_image_that_was_copied_is_not_linked(tmp_path):
    store, content = MediaStore(tmp_path / "media"), saved(noisy())
    reference = reference_of(content)
    (tmp_path / "a.png").write_bytes(content)
    store.put(content, reference)

    store.link(tmp_path / "a.png", reference)

    assert not store.path(reference).is_symlink()


def test_limits_of_an_area_are_part_of_a_reference():
    reference = reference_of(saved(noisy()))
    limited = replace(reference, limits=PixelLimits(max_pixels=64))

    assert limited.fields() == reference.fields() | {"max_pixels": 64}
    assert MediaRef.of(limited.fields()) == limited
    assert limited.file_name == reference.file_name
    assert limited.identity != reference.identity == reference.sha256
    with pytest.raises(MediaProblem, match="max_pixels is 0"):
        MediaRef.of(reference.fields() | {"max_pixels": 0})
    with pytest.raises(MediaProblem, match="expected at most max_pixels = 64"):
        limited.limits.otherwise(PixelLimits(min_pixels=65))


@pytest.mark.parametrize(("folder_mode", "file_mode"), [(0o700, 0o600), (0o755, 0o644)])
def test_an_image_is_open_to_whom_its_folder_is_open(tmp_path, folder_mode, file_mode):
    store, content = MediaStore(tmp_path / "media"), saved(noisy())
    reference = reference_of(content)
    path = store.path(reference)
    path.parent.mkdir(parents=True)
    path.parent.chmod(folder_mode)

    store.put(content, reference)

    assert path.stat().st_mode & 0o777 == file_mode
