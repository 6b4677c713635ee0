"""A row that has shared starts once computes what whole sequences would."""

import itertools

import numpy as np
import pytest
import torch

from rlhf_torch.packed.packing import PackedLayout
from rlhf_torch.packed.shared_starts import SharedLayout, places_of

CPU = torch.device("cpu")
HEADS, KV_HEADS, WIDTH = 4, 2, 8


def test_places_by_hand():
    # a b c 1 | a b c 2 3 | a b c 4 | d 5 | d 6
    offsets = np.array([0, 4, 9, 13, 15, 17])

    places = places_of(offsets, [0, 3, 3, 0, 1])

    # in the row: a b c 1 2 3 4 d 5 6
    assert places.kept.tolist() == [0, 1, 2, 3, 7, 8, 12, 13, 14, 16]
    assert places.place.tolist() == [0, 1, 2, 3, 0, 1, 2, 4, 5, 0, 1, 2, 6, 7, 8, 7, 9]
    assert places.shared.tolist() == [0, 1, 2, 7]
    assert places.copies.tolist() == [[0, 4, 9], [1, 5, 10], [2, 6, 11], [13, 15, 17]]


def test_nothing_shared_has_no_places():
    assert places_of(np.array([0, 4, 9]), [0, 0]) is None


def whole_sequences(parts, layout, places, **options):
    """Queries, keys and values at all their places, by torch's own indexing."""
    place, kept = torch.from_numpy(places.place), torch.from_numpy(places.kept)
    query, key, value = (part[:, :, place] for part in parts)
    return layout.attend(0, query, key, value, **options)[:, kept]


@pytest.mark.parametrize("lengths", [(9, 9, 9), (7, 12, 8, 6), (5, 9, 7, 4, 6)])
@pytest.mark.parametrize("window", [None, 4])
@pytest.mark.parametrize("softcap", [None, 5.0])
def test_attention_and_its_gradients_are_those_of_whole_sequences(lengths, window, softcap):
    starts = [0] + [4] * (len(lengths) - 1)
    if len(lengths) == 5:
        starts[2] = 0  # two groups
        starts[4] = 0  # and one alone
    offsets = np.array([0, *itertools.accumulate(lengths)])
    places = places_of(offsets, starts)
    generator = torch.Generator().manual_seed(0)
    parts = [
        torch.randn(1, heads, len(places.kept), WIDTH, generator=generator, dtype=torch.float64)
        for heads in (HEADS, KV_HEADS, KV_HEADS)
    ]
    for part in parts:
        part.requires_grad_()
    whole = PackedLayout(torch.from_numpy(offsets), CPU)
    options = {"scaling": 0.3, "sliding_window": window, "softcap": softcap}
    upstream = torch.randn(1, len(places.kept), HEADS, WIDTH, generator=generator).double()

    actual = SharedLayout(whole, places, CPU).attend(0, *parts, **options)
    expected = whole_sequences(parts, whole, places, **options)

    torch.testing.assert_close(actual, expected, atol=0, rtol=0)
    for found, wanted in zip(
        torch.autograd.grad((actual * upstream).sum(), parts),
        torch.autograd.grad((expected * upstream).sum(), parts),
        strict=True,
    ):
        torch.testing.assert_close(found, wanted)
