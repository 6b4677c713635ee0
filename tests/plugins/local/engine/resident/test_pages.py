"""Pages belong to those who hold them, and to nobody else."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlhf_core import RolloutError
from rlhf_plugin_local.engine.resident.pages import PAGE, SCRATCH, PagePool, pages_of
from rlhf_testing.errors import has_code


def test_pages_hold_whole_numbers_of_tokens():
    assert [pages_of(n) for n in (0, 1, PAGE, PAGE + 1)] == [0, 1, 1, 2]


def test_the_scratch_page_is_never_given_away():
    pool = PagePool(5)

    assert SCRATCH not in pool.take(4)
    assert pool.num_free == 0


def test_more_pages_than_are_free_are_refused():
    pool = PagePool(4)
    pool.take(1)

    with pytest.raises(
        RolloutError, match=r"3 pages.*2 of 4", check=has_code("engine/pages-missing")
    ):
        pool.take(3)


def test_a_shared_page_is_free_when_its_last_holder_leaves():
    pool = PagePool(4)
    pages = pool.take(2)
    pool.hold(pages[:1])

    assert pool.release(pages) == pages[1:]
    assert pool.release(pages[:1]) == pages[:1]
    assert pool.num_free == 3


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_no_page_is_lost_or_has_two_owners(data):
    pool = PagePool(20)
    held: list[list[int]] = []
    for _ in range(data.draw(st.integers(1, 30))):
        if held and data.draw(st.booleans()):
            pool.release(held.pop(data.draw(st.integers(0, len(held) - 1))))
            continue
        shared = data.draw(st.sampled_from([[], *held]))[: data.draw(st.integers(0, 2))]
        own = pool.take(data.draw(st.integers(0, min(3, pool.num_free))))
        pool.hold(shared)
        held.append(shared + own)
        assert len({*own} & {page for pages in held[:-1] for page in pages}) == 0
    assert pool.num_free == 19 - len({page for pages in held for page in pages})
