"""Each intended difference is there, and ends where the table says it does."""

from __future__ import annotations

import pytest
import torch

from .differences import Difference
from .tables import DIFFERENCES

pytestmark = pytest.mark.usefixtures("installed_peers")


def name(entry: Difference) -> str:
    return f"{entry.peer}.{entry.function}-{entry.compute.__qualname__}"


@pytest.mark.parametrize("entry", DIFFERENCES, ids=name)
def test_the_two_differ(entry: Difference) -> None:
    both = entry.compute(False)

    assert both.ours.isfinite().all()
    gap = (both.ours - both.theirs).abs().max()
    assert not gap <= 10 * entry.tolerance, f"they are the same to {gap:.2g}"


@pytest.mark.parametrize("entry", DIFFERENCES, ids=name)
def test_they_agree_where_the_table_says(entry: Difference) -> None:
    both = entry.compute(True)

    torch.testing.assert_close(
        both.ours, both.theirs, atol=entry.tolerance, rtol=entry.tolerance, check_dtype=False
    )
    assert both.theirs.abs().max() > 1e-3, "nothing was compared"
