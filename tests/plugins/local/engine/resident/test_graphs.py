"""Numbers of rows that have a graph."""

from __future__ import annotations

import pytest

from rlhf_plugin_local.engine.resident.graphs import graph_sizes


@pytest.mark.parametrize("num_rows", [8, 16, 24, 256, 1000])
def test_every_number_of_rows_has_a_graph_that_is_not_much_larger(num_rows):
    sizes = graph_sizes(num_rows)

    assert sizes[-1] == num_rows
    assert list(sizes) == sorted(set(sizes))
    for rows in range(1, num_rows + 1):
        size = next(size for size in sizes if size >= rows)
        assert rows <= 16 or size <= 1.25 * rows


def test_there_are_few_sizes():
    assert graph_sizes(16) == (8, 16)
    assert graph_sizes(64) == (8, 16, 20, 24, 28, 32, 40, 48, 56, 64)
