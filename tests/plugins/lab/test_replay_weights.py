"""Moves of weights between checkpoints, computed by hand."""

import math

import pytest
import torch
from safetensors.torch import save_file

from rlhf_core import ConfigError
from rlhf_plugin_lab.replay.weights import moves
from rlhf_testing.errors import has_code


def checkpoint(folder, weights, name="model.safetensors", key="a"):
    (folder / "policy").mkdir(parents=True)
    save_file({key: torch.tensor(weights)}, folder / "policy" / name)
    save_file({"a::exp_avg": torch.tensor([9.0])}, folder / "policy/optimizer.safetensors")
    return folder


def test_moves_are_euclidean_norms_of_differences(tmp_path):
    start = checkpoint(tmp_path / "start", [0.0, 0.0])
    before = checkpoint(tmp_path / "before", [1.0, 0.0])
    other = checkpoint(tmp_path / "other", [0.0, 1.0])
    after = checkpoint(
        tmp_path / "after", [4.0, 4.0]
    )  # moved by (3, 4): 5; from the start by (4, 4)
    other_after = checkpoint(tmp_path / "other_after", [0.0, 3.0])  # moved by (0, 2): 2

    found = moves(start=start, before=(before, other), after=(after, other_after))

    assert (found.original, found.changed) == (5.0, 2.0)
    assert found.cosine == pytest.approx(8 / 10, rel=1e-15)  # (3, 4) . (0, 2) = 8
    assert found.distance == pytest.approx(math.sqrt(17), rel=1e-15)  # (-4, -1)
    assert found.relative == pytest.approx(math.sqrt(17 / 32), rel=1e-15)


def test_without_a_move_cosine_and_relative_distance_are_unknown(tmp_path):
    still = checkpoint(tmp_path / "still", [1.0])

    found = moves(start=still, before=(still, still), after=(still, still))

    assert (found.original, found.distance) == (0.0, 0.0)
    assert math.isnan(found.cosine)
    assert math.isnan(found.relative)


def test_other_parameters_are_refused(tmp_path):
    one = checkpoint(tmp_path / "one", [1.0])
    two = checkpoint(tmp_path / "two", [1.0], key="b")

    with pytest.raises(ConfigError, check=has_code("lab/other-weights")):
        moves(start=one, before=(one, one), after=(one, two))


def test_checkpoints_without_weights_in_safetensors_are_refused(tmp_path):
    (tmp_path / "none/policy").mkdir(parents=True)

    with pytest.raises(ConfigError, check=has_code("lab/no-weights")):
        moves(start=tmp_path / "none", before=(tmp_path,) * 2, after=(tmp_path,) * 2)


def test_of_parts_that_ranks_wrote_the_weights_alone_count(tmp_path):
    """Moments and the number of updates stand beside them: 3 and 4 move, of 100 and more that differ."""
    folders = []
    for at, weights in enumerate(([0.0, 0.0], [3.0, 0.0], [3.0, 4.0])):
        folder = tmp_path / str(at) / "policy"
        folder.mkdir(parents=True)
        for rank, weight in enumerate(weights):
            tensors = {
                "a::float32": weight,
                "a::optimizer.exp_avg": 100.0 * at,
                "a::optimizer.step": 1.0 * at,
            }
            each = {key: torch.tensor([value]) for key, value in tensors.items()}
            save_file(each, folder / f"part-0000{rank}-of-00002.safetensors")
        folders.append(folder.parent)
    zero, three, five = folders

    found = moves(start=zero, before=(zero, zero), after=(three, five))

    assert (found.original, found.changed, found.distance) == (3.0, 5.0, 4.0)
