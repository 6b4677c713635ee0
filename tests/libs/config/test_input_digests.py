"""Content of files has a digest, whatever their times; hub names have none."""

import os

import pytest

from rlhf_trainer.loop import input_digests as module
from rlhf_trainer.loop.input_digests import input_digests


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in (
        "part-1.jsonl",
        "part-2.jsonl",
        "model/config.json",
        "model/a.safetensors",
        "set/test/x.arrow",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    return tmp_path


NAMES = ("part-1.jsonl", "part-*.jsonl", "model", "set")


def digests():
    return input_digests([("data.train", name) for name in NAMES])


def test_files_folders_and_patterns_have_one_and_hub_names_have_none(files):
    assert list(digests()) == [f"data.train {name}" for name in NAMES]
    assert input_digests([("model.path", "org/name"), ("eval.data", "org/set:test")]) == {}


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ("part-1.jsonl", ["part-1.jsonl", "part-*.jsonl"]),
        ("part-2.jsonl", ["part-*.jsonl"]),
        ("part-3.jsonl", ["part-*.jsonl"]),
        ("model/a.safetensors", ["model"]),
        ("set/test/x.arrow", ["set"]),
    ],
)
def test_other_content_has_another_digest(files, changed, named):
    before = digests()
    (files / changed).write_text("other")

    after = digests()

    assert [
        name for name in NAMES if before[f"data.train {name}"] != after[f"data.train {name}"]
    ] == named


def test_times_do_not_matter_nor_do_checkpoints_beside_a_models_files(files):
    before = digests()
    os.utime(files / "part-1.jsonl", (1, 1))
    (files / "model" / "checkpoint-1").mkdir()
    (files / "model" / "checkpoint-1" / "a.bin").write_text("x")

    assert digests() == before


@pytest.mark.parametrize("place", [0, 500, 999])
def test_of_a_large_file_blocks_from_beginning_to_end_count(files, monkeypatch, place):
    monkeypatch.setattr(module, "WHOLE_BYTES", 100)
    monkeypatch.setattr(module, "BLOCK_BYTES", 10)
    monkeypatch.setattr(module, "NUM_BLOCKS", 3)
    content = bytearray(1000)
    (files / "part-1.jsonl").write_bytes(content)
    before = digests()
    content[place] = 1
    (files / "part-1.jsonl").write_bytes(content)

    assert digests()["data.train part-1.jsonl"] != before["data.train part-1.jsonl"]


def test_a_file_that_cannot_be_read_is_left_to_its_reader(files, monkeypatch):
    def refuse(path, size):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(module, "_parts", refuse)

    assert set(digests().values()) == {"cannot be read (Permission denied)"}
