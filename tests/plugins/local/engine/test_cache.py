"""The cache keeps what was written, through growth and moves."""

from __future__ import annotations

import torch

from rlhf_plugin_local.engine.cache import KVCache, round_up

CPU = torch.device("cpu")


def make_cache(length: int = 16) -> KVCache:
    cache = KVCache(num_rows=8, block=8, dtype=torch.float32, device=CPU)
    cache.reserve(length)
    return cache


def write(cache: KVCache, layer: int, rows: list[int], positions: list[int], scale: float) -> None:
    heads, head_dim = 2 + layer, 4
    key = scale * torch.arange(1.0, len(rows) + 1)[:, None, None].expand(-1, heads, head_dim)
    index = cache.index(heads, torch.tensor(rows), torch.tensor(positions))
    cache.write(layer, key, -key, index)


def test_round_up():
    assert [round_up(n, 8) for n in (0, 1, 8, 9)] == [0, 8, 8, 16]


def test_what_is_written_is_where_it_belongs_and_nowhere_else():
    cache = make_cache()

    write(cache, 0, rows=[0, 3, 3], positions=[5, 0, 1], scale=1.0)

    expected = torch.zeros(8, 2, 16, 4)
    expected[0, :, 5], expected[3, :, 0], expected[3, :, 1] = 1.0, 2.0, 3.0
    assert torch.equal(cache.keys[0], expected)
    assert torch.equal(cache.values[0], -expected)


def test_growing_keeps_the_content_and_layers_may_differ():
    cache = make_cache()
    write(cache, 0, rows=[1], positions=[15], scale=1.0)
    write(cache, 1, rows=[2], positions=[7], scale=5.0)

    cache.reserve(17)

    assert cache.capacity == 24
    assert cache.keys[0].shape == (8, 2, 24, 4)
    assert cache.keys[1].shape == (8, 3, 24, 4)
    assert (cache.keys[0][1, :, 15] == 1.0).all()
    assert (cache.values[1][2, :, 7] == -5.0).all()
    assert int((cache.keys[0] != 0).sum()) == 2 * 4


def test_reserving_less_changes_nothing():
    cache = make_cache(64)

    cache.reserve(10)

    assert cache.capacity == 64


def test_a_moved_row_has_the_content_of_the_other():
    cache = make_cache()
    write(cache, 0, rows=[6, 7], positions=[3, 2], scale=1.0)

    cache.move(torch.tensor([6, 7]), torch.tensor([1, 0]), used=4)

    assert torch.equal(cache.keys[0][1, :, :4], cache.keys[0][6, :, :4])
    assert torch.equal(cache.values[0][0, :, :4], cache.values[0][7, :, :4])
