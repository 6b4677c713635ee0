"""Damage within what a checkpoint vouches for is found; what comes after it is not looked at."""

import pytest

from rlhf_core.storage.run_folder import RunFolder
from rlhf_trainer.durable.records import RunningDigest, check_records

CONTENT = b'{"step": 1}\n{"step": 2}\n'


@pytest.fixture
def folder(tmp_path):
    folder = RunFolder(tmp_path)
    for path in folder.records:
        path.write_bytes(CONTENT)
    return folder


@pytest.fixture
def extents(folder):
    digest = RunningDigest()
    digest.add(CONTENT)
    return {path.name: digest.extent() for path in folder.records}


def test_records_may_have_grown(folder, extents):
    folder.metrics.write_bytes(CONTENT + b'{"step": 3, "broken')

    checked = check_records(folder, extents, ["ledger.jsonl"])

    assert checked.damaged == {}
    assert checked.whole["metrics.jsonl"].extent() == extents["metrics.jsonl"]


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (
            lambda path: path.write_bytes(CONTENT.replace(b"1", b"7")),
            "has changed within its first 24 bytes",
        ),
        (lambda path: path.write_bytes(CONTENT[12:]), "has lost its end: 12 of 24 bytes are left"),
        (lambda path: path.write_bytes(b"x\n" + CONTENT), "has changed within its first 24 bytes"),
        (lambda path: path.unlink(), "is missing"),
    ],
)
@pytest.mark.parametrize("name", ["metrics.jsonl", "samples.jsonl", "ledger.jsonl"])
def test_damage_is_named_by_file(folder, extents, name, damage, said):
    damage(folder.root / name)

    checked = check_records(folder, extents, ["ledger.jsonl"])

    assert checked.damaged == {name: said}
    assert name not in checked.whole


def test_a_record_that_was_empty_may_be_missing(folder, extents):
    folder.samples.unlink()
    extents["samples.jsonl"] = RunningDigest().extent()

    assert check_records(folder, extents, ["ledger.jsonl"]).damaged == {}
