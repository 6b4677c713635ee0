"""A row that has shared starts once computes what whole sequences would."""

import itertools

import numpy as np
import pytest
import torch

from rlhf_torch.packed.branches import BranchLayout
from rlhf_torch.packed.packing import PackedLayout
from rlhf_torch.packed.shared_starts import Copies, SharedLayout, places_of

CPU = torch.device("cpu")
HEADS, KV_HEADS, WIDTH = 4, 2, 8


def test_places_by_hand():
    # a b c 1 | a b c 2 3 | a b c 4 | d 5 | d 6
    offsets = np.array([0, 4, 9, 13, 15, 17])

    place = places_of(offsets, [0, 3, 3, 0, 1], [0, 0, 0, 3, 3])

    # in the row: a b c 1 2 3 4 d 5 6
    assert Copies(place, CPU).kept.tolist() == [0, 1, 2, 3, 7, 8, 12, 13, 14, 16]
    assert place.tolist() == [0, 1, 2, 3, 0, 1, 2, 4, 5, 0, 1, 2, 6, 7, 8, 7, 9]


def test_places_of_a_tree_by_hand():
    # a b c | a b c d | a b e | a b e f | a b: the last one has no token of its own
    offsets = np.array([0, 3, 7, 10, 14, 16])

    place = places_of(offsets, [0, 3, 2, 3, 2], [0, 0, 1, 2, 3])

    # in the row: a b c d e f
    assert Copies(place, CPU).kept.tolist() == [0, 1, 2, 6, 9, 13]
    assert place.tolist() == [0, 1, 2, 0, 1, 2, 3, 0, 1, 4, 0, 1, 4, 5, 0, 1]


def test_copies_by_hand():
    """Tokens 0 to 2 of the row stand for five, one and two others."""
    copies = Copies(np.array([0, 1, 2, 0, 2, 0, 0, 0]), CPU)

    assert copies.kept.tolist() == [0, 1, 2]
    of_two, of_five = copies.shared
    assert (of_two.shared.tolist(), of_two.copies.tolist()) == ([2], [[2, 4]])
    assert (of_five.shared.tolist(), of_five.copies.tolist()) == ([0], [[0, 3, 5, 6, 7]])


def test_gradients_of_copies_are_those_of_indexing():
    generator = torch.Generator().manual_seed(0)
    place = torch.randint(0, 6, (40,), generator=generator)
    place[:6] = torch.arange(6)
    part = torch.randn(1, 2, 6, 3, generator=generator, dtype=torch.float64, requires_grad=True)
    upstream = torch.randn(1, 2, 40, 3, generator=generator, dtype=torch.float64)

    spread = Copies(place.numpy(), CPU).spread(part)

    assert torch.equal(spread, part[:, :, place])
    (found,) = torch.autograd.grad((spread * upstream).sum(), part)
    (wanted,) = torch.autograd.grad((part[:, :, place] * upstream).sum(), part)
    torch.testing.assert_close(found, wanted)


def test_nothing_shared_has_no_places():
    assert places_of(np.array([0, 4, 9]), [0, 0], [0, 1]) is None


def whole_sequences(parts, layout, place, **options):
    """Queries, keys and values at all their places, by torch's own indexing."""
    kept = np.unique(place, return_index=True)[1]
    query, key, value = (part[:, :, place] for part in parts)
    return layout.attend(0, query, key, value, **options)[:, kept]


TREES = {
    "a prompt": [(9, 0, 0), (9, 4, 0), (9, 4, 0)],
    "a prompt, ragged": [(7, 0, 0), (12, 4, 0), (8, 4, 0), (6, 4, 0)],
    "two prompts and one alone": [(5, 0, 0), (9, 4, 0), (7, 0, 2), (4, 0, 3), (6, 4, 3)],
    "forks of forks": [(9, 0, 0), (12, 6, 0), (11, 8, 1), (10, 2, 0), (8, 7, 3), (12, 11, 2)],
    "beginnings and equal ones": [
        (6, 0, 0),
        (9, 6, 0),
        (4, 4, 1),
        (9, 9, 1),
        (10, 9, 3),
        (6, 6, 0),
    ],
}
"""Of each sequence the length, the number of leading tokens that it shares, and with which earlier sequence."""


@pytest.mark.parametrize("ways", [SharedLayout, BranchLayout])
@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("window", [None, 4])
@pytest.mark.parametrize("softcap", [None, 5.0])
def test_attention_and_its_gradients_are_those_of_whole_sequences(ways, tree, window, softcap):
    lengths, starts, sources = zip(*TREES[tree], strict=True)
    offsets = np.array([0, *itertools.accumulate(lengths)])
    place = places_of(offsets, starts, sources)
    N = len(set(place.tolist()))
    generator = torch.Generator().manual_seed(0)
    parts = [
        torch.randn(1, heads, N, WIDTH, generator=generator, dtype=torch.float64)
        for heads in (HEADS, KV_HEADS, KV_HEADS)
    ]
    for part in parts:
        part.requires_grad_()
    whole = PackedLayout(torch.from_numpy(offsets), CPU)
    options = {"scaling": 0.3, "sliding_window": window, "softcap": softcap}
    upstream = torch.randn(1, N, HEADS, WIDTH, generator=generator).double()

    if ways is SharedLayout:
        layout, exactly = SharedLayout(whole, place, CPU), {"atol": 0, "rtol": 0}
    else:
        layout, exactly = BranchLayout(whole, np.array(starts), place, CPU), {}
    actual = layout.attend(0, *parts, **options)
    expected = whole_sequences(parts, whole, place, **options)

    torch.testing.assert_close(actual, expected, **exactly)
    for found, wanted in zip(
        torch.autograd.grad((actual * upstream).sum(), parts),
        torch.autograd.grad((expected * upstream).sum(), parts),
        strict=True,
    ):
        torch.testing.assert_close(found, wanted)
