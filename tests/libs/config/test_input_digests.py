"""Content of files has a digest, whatever their times; hub names have none."""

import hashlib
import os

import pytest

from rlhf_config import input_digests as module
from rlhf_config.input_digests import comparable, input_digests


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


@pytest.fixture
def small_bounds(monkeypatch):
    """Files of 1000 bytes are large: blocks of 10 at 0, 495 and 990 stand for them."""
    monkeypatch.setattr(module, "WHOLE_BYTES", 100)
    monkeypatch.setattr(module, "BLOCK_BYTES", 10)
    monkeypatch.setattr(module, "NUM_BLOCKS", 3)
    monkeypatch.setattr(module, "SEGMENT_BYTES", 300)


def with_a_byte_changed(path, place):
    """Digests of all inputs, and those after one byte of a file of 1000 bytes is another."""
    content = bytearray(1000)
    path.write_bytes(content)
    first = digests()
    content[place] = 1
    path.write_bytes(content)
    return first, digests()


@pytest.mark.parametrize("place", [0, 13, 250, 989, 999])
@pytest.mark.parametrize(
    ("name", "option"), [("part-1.jsonl", "part-1.jsonl"), ("set/test/x.arrow", "set")]
)
def test_every_byte_of_large_data_counts(files, small_bounds, name, option, place):
    first, second = with_a_byte_changed(files / name, place)

    assert first[f"data.train {option}"].startswith("sha256-all:")
    assert first[f"data.train {option}"] != second[f"data.train {option}"]


@pytest.mark.parametrize("place", [0, 13, 299, 300, 600, 989, 999])
def test_every_byte_of_a_models_large_weights_counts(files, small_bounds, place):
    first, second = with_a_byte_changed(files / "model/a.safetensors", place)

    assert first["data.train model"].startswith("sha256-all:")
    assert first["data.train model"] != second["data.train model"]


def test_the_digest_of_large_weights_is_that_of_the_digests_of_their_segments(files, small_bounds):
    (files / "model/config.json").write_text("{}")
    content = bytes(range(250)) * 4
    (files / "model/a.safetensors").write_bytes(content)

    segments = [content[start : start + 300] for start in (0, 300, 600, 900)]
    read = b"a.safetensors 1000\n" + b"".join(hashlib.sha256(one).digest() for one in segments)
    expected = hashlib.sha256(read + b"config.json 2\n{}").hexdigest()[:16]
    assert digests()["data.train model"] == f"sha256-all:{expected}"


@pytest.mark.parametrize(("place", "is_seen"), [(0, True), (500, True), (999, True), (13, False)])
def test_of_weights_above_the_bound_of_a_model_blocks_from_beginning_to_end_count(
    files, small_bounds, monkeypatch, place, is_seen
):
    monkeypatch.setattr(module, "WHOLE_WEIGHTS_BYTES", 999)
    first, second = with_a_byte_changed(files / "model/a.safetensors", place)

    assert first["data.train model"].startswith("sha256:")
    assert (first["data.train model"] != second["data.train model"]) == is_seen


def test_rows_beside_a_models_files_are_read_whole(files, small_bounds):
    first, second = with_a_byte_changed(files / "model/rows.jsonl", 13)

    assert first["data.train model"] != second["data.train model"]


def test_a_model_that_two_options_name_is_read_once(files, small_bounds, monkeypatch):
    read, chunks = [], module._chunks
    monkeypatch.setattr(module, "_chunks", lambda path: read.append(path) or chunks(path))

    found = input_digests([("model.path", "model"), ("teacher.path", "model")])

    assert len(read) == 2
    assert found["model.path model"] == found["teacher.path model"]


def test_weights_of_blocks_by_an_earlier_version_are_compared_with_digests_of_blocks(
    files, small_bounds, monkeypatch
):
    inputs = [("data.train", name) for name in NAMES]
    (files / "model/a.safetensors").write_bytes(bytes(1000))
    before = input_digests(inputs, sampled=True)

    assert before["data.train model"].startswith("sha256:")
    assert digests()["data.train model"].startswith("sha256-all:")
    assert comparable(digests(), before, inputs) == before


@pytest.mark.parametrize(("place", "is_seen"), [(0, True), (13, False)])
def test_digests_of_blocks_by_an_earlier_version_are_compared_with_digests_of_blocks(
    files, small_bounds, place, is_seen
):
    """Bytes of such a digest: name and size, then the three blocks."""
    of_blocks = hashlib.sha256(b"part-1.jsonl 1000\n" + bytes(30)).hexdigest()[:16]
    before = {"data.train part-1.jsonl": f"sha256:{of_blocks}"}
    _, now = with_a_byte_changed(files / "part-1.jsonl", place)

    compared = comparable(now, before, [("data.train", name) for name in NAMES])

    changed = [name for name in compared if before.get(name, compared[name]) != compared[name]]
    assert changed == (["data.train part-1.jsonl"] if is_seen else [])
    # A set of which the checkpoint has no digest, or a whole one, is not read again.
    assert compared["data.train part-*.jsonl"] == now["data.train part-*.jsonl"]
    assert comparable(now, now, []) == now


def test_a_file_that_cannot_be_read_is_left_to_its_reader(files, monkeypatch):
    def refuse(path):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(module, "_chunks", refuse)

    assert set(digests().values()) == {"cannot be read (Permission denied)"}
