"""Writing that leaves the old state or the new one."""

import os
import stat

import pytest

from rlhf_core.storage.atomic import remove, set_aside, sync_tree
from rlhf_core.storage.writing import write_text_atomically


def test_a_file_is_replaced_and_nothing_is_left_beside_it(tmp_path):
    path = tmp_path / "state.json"
    write_text_atomically(path, "old, and longer")
    write_text_atomically(path, "new")

    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


def test_the_old_content_stays_when_the_new_one_cannot_be_written(tmp_path):
    path = tmp_path / "state.json"
    write_text_atomically(path, "old")

    with pytest.raises(UnicodeEncodeError):
        write_text_atomically(path, "half \ud800")

    assert path.read_text() == "old"
    write_text_atomically(path, "new")
    assert path.read_text() == "new"


@pytest.mark.parametrize("leftover", ["file", "folder", "link"])
def test_what_a_killed_write_left_is_replaced_and_links_are_not_followed(tmp_path, leftover):
    path, temporary = tmp_path / "state.json", tmp_path / "state.json.tmp"
    victim = tmp_path / "victim"
    victim.write_text("untouched")
    match leftover:
        case "file":
            temporary.write_text("half")
        case "folder":
            temporary.mkdir()
        case "link":
            temporary.symlink_to(victim)

    write_text_atomically(path, "new")

    assert path.read_text() == "new"
    assert victim.read_text() == "untouched"


def test_a_tree_is_synced_with_each_file_and_each_folder(tmp_path, monkeypatch):
    (tmp_path / "a" / "b").mkdir(parents=True)
    for name in ("one", "a/two", "a/b/three"):
        (tmp_path / name).write_text(name)
    synced = []
    fsync = os.fsync

    def noting(descriptor):
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", noting)
    sync_tree(tmp_path)

    names = [".", "a", "a/b", "a/b/three", "a/two", "one"]
    assert sorted(os.path.relpath(path, tmp_path) for path in synced) == names
    assert synced[-1] == str(tmp_path)  # the names last, after what they stand for


def test_files_folders_and_links_are_removed_and_nothing_is_no_error(tmp_path):
    target = tmp_path / "target"
    (target / "deep").mkdir(parents=True)
    (tmp_path / "link").symlink_to(target)
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    (tmp_path / "file").write_text("x")

    for name in ("link", "dangling", "file", "missing"):
        remove(tmp_path / name)

    assert list(tmp_path.iterdir()) == [target]
    assert (target / "deep").is_dir()
    remove(target)
    assert list(tmp_path.iterdir()) == []


def test_damaged_files_are_numbered_and_none_is_overwritten(tmp_path):
    path = tmp_path / "ledger.jsonl"
    (tmp_path / "ledger.jsonl.damaged-2").symlink_to(tmp_path / "nowhere")
    names = []
    for text in ("first", "second", "third"):
        path.write_text(text)
        names.append(set_aside(path).name)

    assert names == ["ledger.jsonl.damaged", "ledger.jsonl.damaged-3", "ledger.jsonl.damaged-4"]
    assert (tmp_path / names[0]).read_text() == "first"
    assert not path.exists()


@pytest.mark.parametrize(
    ("folder_mode", "file_mode", "then"),
    [(0o755, 0o600, 0o644), (0o777, 0o600, 0o666), (0o700, 0o600, 0o600), (0o755, 0o755, 0o755)],
)
def test_a_file_is_open_to_whom_its_folder_is_open(tmp_path, folder_mode, file_mode, then):
    folder = tmp_path / "written" / "policy"
    folder.mkdir(parents=True)
    file = folder / "model.safetensors"
    file.write_bytes(b"weights")
    file.chmod(file_mode)
    folder.chmod(folder_mode)

    sync_tree(tmp_path / "written")

    assert stat.S_IMODE(file.stat().st_mode) == then
