"""A checkpoint is whole or absent, and damage is noticed."""

import asyncio
import contextlib
import json
import os

import pytest

from rlhf_core.errors import CheckpointError
from rlhf_core.storage.run_folder import complete
from rlhf_testing.errors import has_code
from rlhf_trainer.durable import checkpoint


async def fill(folder):
    (folder / "policy").mkdir()
    (folder / "policy" / "model.bin").write_bytes(b"weights")


def save(root, step, state=None, fill=fill):
    return asyncio.run(checkpoint.save(root, step, state or {"step": step}, fill))


def test_what_is_saved_is_read_back(tmp_path):
    folder = save(tmp_path, 3, {"step": 3, "x": [1, 2.5]})

    assert checkpoint.read(folder) == {"step": 3, "x": [1, 2.5]}


def test_a_save_that_fails_leaves_the_older_ones_alone(tmp_path):
    save(tmp_path, 1)

    async def broken(folder):
        await fill(folder)
        raise OSError(28, "No space left on device")

    with pytest.raises(
        CheckpointError, match="No space left", check=has_code("output/not-written")
    ):
        save(tmp_path, 2, fill=broken)

    assert [path.name for path in tmp_path.iterdir()] == ["step-00000001"]
    checkpoint.read(tmp_path / "step-00000001")


def damage_cut(path):
    path.write_bytes(path.read_bytes()[:-1])


def damage_flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("damage", [damage_cut, damage_flip, lambda path: path.unlink()])
@pytest.mark.parametrize("name", ["state.json", "policy/model.bin", "manifest.json"])
def test_any_damage_to_any_file_is_refused(tmp_path, name, damage):
    folder = save(tmp_path, 1)
    damage(folder / name)

    with pytest.raises(CheckpointError):
        checkpoint.read(folder)


def test_a_file_that_does_not_belong_is_refused(tmp_path):
    folder = save(tmp_path, 1)
    (folder / "policy" / "extra.bin").write_bytes(b"")

    with pytest.raises(
        CheckpointError,
        match=r"extra\.bin does not belong",
        check=has_code("checkpoint/stray-file"),
    ):
        checkpoint.read(folder)


def test_another_schema_is_refused(tmp_path):
    folder = save(tmp_path, 1)
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps(manifest | {"schema": 99}))

    with pytest.raises(
        CheckpointError, match="3, got 99", check=has_code("checkpoint/other-version")
    ):
        checkpoint.read(folder)


def test_the_newest_valid_one_is_found_behind_a_damaged_one(tmp_path, caplog):
    save(tmp_path, 1)
    damage_flip(save(tmp_path, 2) / "policy" / "model.bin")

    folder, state = checkpoint.newest_valid(tmp_path)

    assert (folder.name, state) == ("step-00000001", {"step": 1})
    assert "passed over" in caplog.text


def test_a_half_written_folder_is_no_checkpoint(tmp_path):
    (tmp_path / "step-00000009.tmp").mkdir()

    assert checkpoint.newest_valid(tmp_path) is None


def test_retention_keeps_the_newest_and_the_best(tmp_path):
    for step in range(1, 6):
        save(tmp_path, step)
    (tmp_path / "step-00000007.tmp").mkdir()

    checkpoint.retain(tmp_path, keep=2, best_steps=[2])

    assert [checkpoint.step_of(path) for path in complete(tmp_path)] == [2, 4, 5]
    assert not list(tmp_path.glob("*.tmp"))


def test_a_kill_between_any_two_renames_leaves_a_valid_newest(tmp_path, monkeypatch):
    """Every write, sync and rename of a save is made to fail in turn; an older checkpoint must stay readable."""
    save(tmp_path, 1)
    real = os.fsync
    for fail_at in range(12):
        calls = 0

        def failing(descriptor, fail_at=fail_at):
            nonlocal calls
            calls += 1
            if calls > fail_at:
                raise OSError(5, "Input/output error")
            real(descriptor)

        monkeypatch.setattr(os, "fsync", failing)
        with contextlib.suppress(CheckpointError):
            save(tmp_path, 2)
        monkeypatch.setattr(os, "fsync", real)
        _, state = checkpoint.newest_valid(tmp_path)
        assert state["step"] in (1, 2)


@pytest.mark.parametrize(
    "content",
    [
        "[]",
        "3",
        "null",
        '{"schema": 3}',
        '{"schema": 3, "files": []}',
        '{"schema": 3, "files": {}}',
        100_000 * "[",
    ],
    ids=lambda content: content[:30],
)
def test_a_manifest_of_another_form_is_passed_over(tmp_path, content):
    save(tmp_path, 1)
    (save(tmp_path, 2) / "manifest.json").write_text(content)

    assert checkpoint.newest_valid(tmp_path)[1] == {"step": 1}


@pytest.mark.parametrize("name", ["step-00000002", "step-00000002.tmp"])
def test_a_file_in_the_place_of_a_checkpoint_is_in_nobodys_way(tmp_path, name):
    save(tmp_path, 1)
    (tmp_path / name).write_text("x")
    (tmp_path / "step-notes").write_text("x")

    assert checkpoint.newest_valid(tmp_path)[1] == {"step": 1}
    save(tmp_path, 2)
    checkpoint.retain(tmp_path, keep=1, best_steps=[])

    assert checkpoint.newest_valid(tmp_path)[1] == {"step": 2}
    assert [path.name for path in complete(tmp_path)] == ["step-00000002"]


def test_checkpoints_of_steps_that_are_done_again_do_not_come_back(tmp_path):
    for step in (1, 2, 3):
        save(tmp_path, step)

    checkpoint.void_later(tmp_path, 1)
    assert checkpoint.newest_valid(tmp_path)[1] == {"step": 1}

    save(tmp_path, 2)
    checkpoint.retain(tmp_path, keep=2, best_steps=[])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000001", "step-00000002"]


def test_a_folder_with_another_steps_name_is_refused_and_stays(tmp_path):
    save(tmp_path, 3)
    renamed = save(tmp_path, 4).rename(tmp_path / "step-00000009")
    told = r"step-00000009: expected the checkpoint of step 9, .* says step 4. Rename the folder to step-00000004"

    with pytest.raises(CheckpointError, match=told, check=has_code("checkpoint/misnamed")):
        checkpoint.newest_valid(tmp_path)
    with pytest.raises(CheckpointError, match=told, check=has_code("checkpoint/misnamed")):
        checkpoint.read(renamed)
    checkpoint.void_later(tmp_path, 3)

    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000003", "step-00000009"]


def test_a_folder_with_a_name_of_its_own_may_be_read(tmp_path):
    folder = save(tmp_path, 4).rename(tmp_path / "best")

    assert checkpoint.read(folder) == {"step": 4}


def test_a_state_of_another_step_than_the_manifests_is_refused(tmp_path):
    folder = save(tmp_path, 4, {"step": 5})

    with pytest.raises(
        CheckpointError,
        match=r"state\.json is of step 5.*step 4",
        check=has_code("checkpoint/damaged"),
    ):
        checkpoint.read(folder)
