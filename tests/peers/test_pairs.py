"""Value and gradient of ours equal those of the peers' released functions, on random ragged input."""

from __future__ import annotations

import pytest
import torch

from .batches import Batch, equal_groups, ragged
from .pairs import PAIRS, Pair, gradients
from .tables import functions

SEEDS = range(4)


def batch_for(pair: Pair, seed: int) -> Batch:
    return equal_groups(seed) if pair.equal_groups else ragged(seed)


@pytest.mark.usefixtures("installed_peers")
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.name)
def test_ours_equals_theirs(pair: Pair, seed: int) -> None:
    batch = batch_for(pair, seed)

    both = pair.compare(batch)

    tolerance = {"atol": pair.tolerance, "rtol": pair.tolerance}
    torch.testing.assert_close(both.ours, both.theirs, **tolerance)
    if pair.gradient is not None:
        slopes = gradients(both, getattr(batch, pair.gradient))
        torch.testing.assert_close(slopes.ours, slopes.theirs, **tolerance)
        assert slopes.theirs.abs().max() > 1e-3, "nothing was compared"


@pytest.mark.usefixtures("installed_peers")
@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.name)
def test_what_is_compared_depends_on_the_input(pair: Pair) -> None:
    first, second = (pair.compare(batch_for(pair, seed)).ours.detach() for seed in (0, 1))

    assert first.shape != second.shape or not torch.allclose(first, second, rtol=1e-4)


def test_at_least_forty_functions_are_compared() -> None:
    assert len(functions()) >= 40
