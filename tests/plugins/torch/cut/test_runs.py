"""Files of runs: what other cuts read of them, and what is damaged."""

import pytest
import torch

from rlhf_core import CheckpointError
from rlhf_testing.errors import has_code
from rlhf_torch.cut.fragment import Fragment
from rlhf_torch.cut.runs import SavedRun, read_runs, write_runs


def fragment(start, length, offset=0):
    return Fragment(name="w", vector=0, offset=offset, start=start, length=length)


@pytest.fixture
def parts(tmp_path):
    """Ten elements 0 to 9, in runs of 4 and 6."""
    paths = []
    for part, (start, stop) in enumerate(((0, 4), (4, 10))):
        values = torch.arange(start, stop, dtype=torch.float32)
        run = SavedRun(name="w", start=start, stop=stop, plain={"kind": "x"})
        run.tensors = {"float32": values, "optimizer.step": torch.tensor(3.0)}
        paths.append(tmp_path / f"{part}.safetensors")
        write_runs(paths[-1], [run])
    return paths


@pytest.mark.parametrize(("start", "length"), [(0, 10), (0, 4), (4, 6), (2, 5), (9, 1), (3, 2)])
def test_any_cut_reads_its_elements(parts, start, length):
    wanted = fragment(start, length, offset=2)
    vector = torch.full((14,), -1.0)

    for path in parts:
        for run in read_runs(path, {"w": wanted}):
            run.copy_into(wanted, vector, "float32")

    expected = torch.full((14,), -1.0)
    expected[2 : 2 + length] = torch.arange(start, start + length)
    torch.testing.assert_close(vector, expected, atol=0, rtol=0)


def test_runs_that_do_not_overlap_are_not_read(parts):
    assert list(read_runs(parts[0], {"w": fragment(4, 6)})) == []
    assert list(read_runs(parts[0], {"other": fragment(0, 4)})) == []


def test_single_numbers_and_plain_values_come_back(parts):
    (run,) = read_runs(parts[0], {"w": fragment(0, 4)})

    assert run.tensors["optimizer.step"] == 3.0
    assert run.plain == {"kind": "x"}


def test_a_damaged_or_missing_file_is_named(parts, tmp_path):
    parts[0].write_bytes(parts[0].read_bytes()[:50])

    for path in (parts[0], tmp_path / "absent.safetensors"):
        with pytest.raises(
            CheckpointError, match=path.name, check=has_code("checkpoint/unreadable")
        ):
            list(read_runs(path, {"w": fragment(0, 4)}))


def test_values_that_json_cannot_hold_are_refused(tmp_path):
    run = SavedRun(name="w", start=0, stop=1, plain={"rate": float("nan")})

    with pytest.raises(CheckpointError, check=has_code("checkpoint/not-json")):
        write_runs(tmp_path / "x.safetensors", [run])
