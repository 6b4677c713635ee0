"""The digest of weights that several workers hold in parts is that of the whole weights."""

from dataclasses import replace

import pytest
import torch

from rlhf_core import RolloutError
from rlhf_plugin_vllm.weights.served_digest import HeldWeight, served_digest
from rlhf_plugin_vllm.worker.recorder import CopyRecorder
from rlhf_testing.errors import has_code
from rlhf_weights import aligned, held_bits_digest, num_words, slot_for, weights_digest


@pytest.fixture
def weights():
    draw = torch.Generator().manual_seed(3)
    shapes = {"rows": (8, 4), "columns": (4, 8), "norm": (4,), "kv": (4, 4)}
    return {name: torch.randn(shape, generator=draw) for name, shape in shapes.items()}


def part_of(name, weight, rank):
    """What one of four ranks keeps: rows, columns, half of the rows as its neighbor does, or everything."""
    if name == "rows":
        return weight[2 * rank : 2 * rank + 2]
    if name == "columns":
        return weight[:, 2 * rank : 2 * rank + 2]
    if name == "kv":
        return weight[2 * (rank // 2) : 2 * (rank // 2) + 2]
    return weight


def worker(weights, rank, change=lambda name, kept: None):
    """Load as a worker does, and tell what is held."""
    slots, end = [], 0
    for name, tensor in weights.items():
        slots.append(slot_for(name, tensor, aligned(end)))
        end = slots[-1].offset + slots[-1].nbytes
    bucket = torch.zeros(end, dtype=torch.uint8)
    for slot in slots:
        slot.view(bucket).copy_(weights[slot.name])
    with CopyRecorder(bucket, slots) as recorder:
        for slot in slots:
            part = part_of(slot.name, slot.view(bucket), rank)
            torch.empty(part.shape).copy_(part)
    report = []
    for name, placed in recorder.placed.items():
        for part in placed.parts:
            change(name, part.kept)
        total, words = held_bits_digest(placed.read(), placed.held())
        report.append(
            HeldWeight(
                name=name,
                dtype="torch.float32",
                shape=placed.slot.shape,
                region=placed.region,
                elements=placed.num_copied,
                all_elements=placed.num_elements,
                total=int(total),
                words=int(words),
                all_words=num_words(placed.slot.nbytes),
            )
        )
    return report


def workers(weights, change=None):
    """Four of them; the third may have changed something."""
    return [
        worker(weights, rank, change) if change and rank == 2 else worker(weights, rank)
        for rank in range(4)
    ]


def test_shards_and_copies_make_the_digest_of_the_whole(weights):
    assert served_digest(workers(weights)) == weights_digest(weights.items())


@pytest.mark.parametrize("name", ["rows", "columns"])
def test_one_stale_element_of_one_shard_shows(weights, name):
    def spoil(which, kept):
        if which == name:
            kept.view(-1)[3] += 1

    spoiled = served_digest(workers(weights, spoil))

    assert spoiled is not None
    assert spoiled != weights_digest(weights.items())


@pytest.mark.parametrize("name", ["norm", "kv"])
def test_copies_that_differ_are_an_error(weights, name):
    def spoil(which, kept):
        if which == name:
            kept.view(-1)[2] += 1

    with pytest.raises(RolloutError, match=f"of {name}", check=has_code("vllm/workers-differ")):
        served_digest(workers(weights, spoil))


def test_stages_make_the_digest_together_and_a_shard_that_is_missing_is_an_error(weights):
    whole = [held for report in workers(weights) for held in report]
    first = [held for held in whole if held.name in ("rows", "norm")]
    second = [held for held in whole if held.name in ("columns", "kv")]

    assert served_digest([first, second]) == weights_digest(weights.items())
    with pytest.raises(
        RolloutError, match=r"24 of the 32.*rows", check=has_code("vllm/part-of-an-update")
    ):
        served_digest(workers(weights)[:3])


def test_sums_that_cannot_be_added_are_no_digest(weights):
    (held, *rest), *others = workers(weights)
    overlapping = replace(held, region="another", elements=24)
    cut = replace(held, words=held.words - 1)

    assert served_digest([[overlapping, *rest], *others]) is None
    assert served_digest([[cut, *rest], *others]) is None
