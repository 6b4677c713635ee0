"""States lie in pages of the cache to the byte, and those that are least likely to be needed give way first."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from rlhf_core.media import MediaRef, MediaSpan
from rlhf_plugin_local.engine.resident import state_pages
from rlhf_plugin_local.engine.resident.ends import KeptEnds
from rlhf_plugin_local.engine.resident.histories import Beginning, Ended
from rlhf_plugin_local.engine.resident.paged_cache import PagedCache
from rlhf_plugin_local.engine.resident.pages import PAGE, PagePool, pages_of
from rlhf_plugin_local.engine.resident.state_pages import StatePages
from rlhf_plugin_local.engine.states import RecurrentStates

CPU = torch.device("cpu")
NUM_PAGES, ROWS = 17, 6
FIRST = list(range(PAGE + 5))
SECOND = [*FIRST, 7, 8, 9]


@pytest.fixture
def cache() -> PagedCache:
    """Keys and values of two layers that differ in heads, in 16 bits: 1920 bytes a page."""
    cache = PagedCache(ROWS, 4, NUM_PAGES, torch.bfloat16, CPU)
    for layer, heads in ((1, 1), (3, 2)):
        cache.stores(layer, torch.zeros(heads, 2), torch.zeros(heads, 3))
    return cache


@pytest.fixture
def states() -> RecurrentStates:
    """Tails of 18 bytes, which are padded to 32, and memories of 1440, in two layers: a state has 2944 bytes."""
    states = RecurrentStates(ROWS, CPU)
    draw = torch.Generator().manual_seed(0)
    for layer in (0, 2):
        tails = torch.randn(ROWS, 3, 3, generator=draw).bfloat16()
        memories = torch.randn(ROWS, 3, 12, 10, generator=draw)
        states.write(states.tails, layer, torch.arange(ROWS), tails)
        states.write(states.memories, layer, torch.arange(ROWS), memories)
    return states


@pytest.fixture
def ends(cache, states) -> KeptEnds:
    return KeptEnds(PagePool(NUM_PAGES), cache, StatePages(states, cache))


def keep(ends: KeptEnds, tokens: list[int], row: int = 0, pages: list[int] | None = None) -> None:
    """Keep a sequence that has ended, whose pages nobody else holds."""
    own = pages or ends._pool.take(pages_of(len(tokens)))
    ends.keep([Ended(tokens, own, row)])
    ends._pool.release(own)


@pytest.mark.parametrize("most", [1, 2**20], ids=["one at a time", "all at once"])
def test_a_state_comes_back_to_the_bit_in_any_row(most, cache, states, monkeypatch):
    monkeypatch.setattr(state_pages, "MOST_COPIED", most)
    before = [store.clone() for store in states.stores()]
    pages = StatePages(states, cache)

    assert pages.per_state == 2
    pages.save([1, 4], [[5, 2], [3, 16]])
    for row in range(ROWS):
        states.erase(row)
    pages.load([0, 5], [[3, 16], [5, 2]])

    for store, old in zip(states.stores(), before, strict=True):
        assert torch.equal(store[0], old[4])
        assert torch.equal(store[5], old[1])
        assert not store[1:5].any()


def test_a_page_is_copied_as_far_as_it_is_filled(cache):
    for store in cache.keys.values():
        store.fill_(torch.nan)
        store[4, :, :3] = 2.0

    cache.copy([4], [6], [3])

    for store in cache.keys.values():
        assert (store[6, :, :3] == 2.0).all()
        assert (store[6, :, 3:] == 0.0).all()


def test_the_longest_history_that_a_prompt_begins_with_is_found(ends):
    keep(ends, FIRST)
    keep(ends, SECOND)

    assert ends.find([*SECOND, 1]).length == len(SECOND)
    assert ends.find(SECOND).length == len(FIRST)  # one token is left to compute
    assert ends.find([*FIRST, 1]).length == len(FIRST)
    assert ends.find(FIRST) == Beginning()
    assert ends.find([*FIRST[:-1], 1, 1]) == Beginning()


def test_a_history_with_another_image_is_not_found(ends):
    """Whatever other lengths are kept, by which the digests differ in where they stop."""
    reference = MediaRef(sha256="a" * 64, num_bytes=9, format="png", width=8, height=8)
    own = MediaSpan(start=7, length=6, image=reference)
    other = replace(own, image=replace(reference, sha256="b" * 64))
    pages = ends._pool.take(pages_of(len(SECOND)))
    ends.keep([Ended(SECOND, pages, 0, [own])])
    keep(ends, FIRST[:9])

    assert ends.find([*SECOND, 1], [own]).length == len(SECOND)
    assert ends.find([*SECOND, 1], [other]) == Beginning()
    assert ends.find([*SECOND, 1]).length == 9


def test_an_equal_history_is_kept_once(ends):
    keep(ends, FIRST)
    free = ends._pool.num_free

    keep(ends, FIRST, row=3)

    assert len(ends) == 1
    assert ends._pool.num_free == free


def test_what_was_gone_on_from_gives_way_before_what_waits(ends):
    other = [9] * 5
    keep(ends, other)
    keep(ends, FIRST)
    keep(ends, SECOND)

    assert ends.make_room(ends._pool.num_free + 1)

    assert ends.find([*FIRST, 1]) == Beginning()
    assert ends.find([*SECOND, 1]).length == len(SECOND)
    assert ends.find([*other, 1]).length == len(other)


def test_pages_of_a_state_are_erased_before_they_are_used_again(ends, cache, states):
    keep(ends, FIRST, row=2)
    state = list(ends.find([*FIRST, 1]).state)
    assert all(cache.read_bytes(torch.tensor([page])).any() for page in state)

    ends.clear()

    assert not cache.read_bytes(torch.arange(NUM_PAGES)).any()
    assert ends._pool.num_free == NUM_PAGES - 1


def test_more_histories_than_there_is_room_for_are_those_that_came_last(ends, cache, states):
    """Sixteen pages hold five histories of a page, with states of two."""
    ended = [Ended([number] * 3, ends._pool.take(1), number % ROWS) for number in range(7)]

    ends.keep(ended)
    for one in ended:
        ends._pool.release(list(one.pages))

    assert 0 < len(ends) < 7
    pages = StatePages(states, cache)
    before = [store.clone() for store in states.stores()]
    for number in range(7 - len(ends), 7):
        found = ends.find([number] * 4)
        assert found.length == 3
        pages.load([0], [found.state])
        for store, old in zip(states.stores(), before, strict=True):
            assert torch.equal(store[0], old[number % ROWS])


def test_without_room_for_a_state_nothing_is_kept(ends):
    ends._pool.take(NUM_PAGES - 3)

    keep(ends, [5] * 3)

    assert len(ends) == 0
    assert ends._pool.num_free == 2
