"""Histories are found by their tokens, and give way to sequences that need their pages."""

from __future__ import annotations

import pytest

from rlhf_core.media import MediaRef, MediaSpan, PixelLimits
from rlhf_plugin_local.engine.resident.histories import Beginning, CachedHistories, Ended, digests
from rlhf_plugin_local.engine.resident.pages import PAGE, PagePool

LONG = list(range(3 * PAGE + 5))
ONE, OTHER = (
    MediaRef(sha256=digit * 64, num_bytes=9, format="png", width=8, height=8) for digit in "ab"
)


def at(start: int, image: MediaRef = ONE) -> MediaSpan:
    """An image of six tokens."""
    return MediaSpan(start=start, length=6, image=image)


@pytest.fixture
def pool() -> PagePool:
    return PagePool(9)


@pytest.fixture
def histories(pool: PagePool) -> CachedHistories:
    """Three full pages of ``LONG``, held by nobody else."""
    found = CachedHistories(pool)
    pages = pool.take(4)
    found.keep([Ended(LONG, pages, row=0)])
    pool.release(pages)
    return found


def test_full_pages_are_kept_and_the_last_one_is_not(pool, histories):
    assert len(histories) == 3
    assert pool.num_free == 8 - 3


def test_the_longest_known_beginning_is_found(histories):
    length, pages, _ = histories.find([*LONG, 1, 2])

    assert length == 3 * PAGE
    assert len(pages) == 3
    assert histories.find(LONG[: 2 * PAGE + 1]) == Beginning(2 * PAGE, pages[:2])
    assert histories.find([*LONG[:PAGE], 7, *LONG[PAGE + 1 :]]) == Beginning(PAGE, pages[:1])
    assert histories.find([7, *LONG[1:]]).length == 0


def test_one_token_at_least_is_left_to_compute(histories):
    assert histories.find(LONG[: 2 * PAGE]).length == PAGE


def test_an_equal_page_is_kept_once(pool, histories):
    pages = pool.take(2)
    histories.keep([Ended(LONG[: 2 * PAGE], pages, row=0)])
    pool.release(pages)

    assert len(histories) == 3
    assert pool.num_free == 8 - 3


def test_the_least_recently_used_gives_way(pool, histories):
    other = pool.take(1)
    histories.keep([Ended([9] * PAGE, other, row=0)])
    pool.release(other)
    histories.find([*LONG, 1])

    assert histories.make_room(5)
    assert histories.find([9] * (PAGE + 1)).length == 0
    assert histories.find([*LONG, 1]).length == 3 * PAGE


def test_a_history_gives_way_from_its_end(pool, histories):
    assert histories.make_room(6)
    assert histories.find([*LONG, 1]).length == 2 * PAGE
    histories.spare_none()

    assert histories.make_room(7)
    assert histories.find([*LONG, 1]).length == PAGE


def test_what_the_next_wave_goes_on_from_does_not_give_way(pool, histories):
    other = pool.take(1)
    histories.keep([Ended([9] * PAGE, other, row=0)])
    pool.release(other)
    histories.find([*LONG[: 2 * PAGE], 1])

    # Free are 4 of 8, and 2 more: the other history, and the last page of this one.
    assert not histories.make_room(7)
    assert pool.num_free == 6
    histories.spare_none()
    assert histories.make_room(8)


def test_pages_in_use_do_not_become_free(pool, histories):
    pool.hold(list(histories.find([*LONG, 1]).pages))
    histories.spare_none()

    assert not histories.make_room(6)
    assert pool.num_free == 5
    assert len(histories) == 0


def test_all_histories_can_be_given_up(pool, histories):
    histories.clear()

    assert pool.num_free == 8
    assert histories.find([*LONG, 1]).length == 0


@pytest.mark.parametrize("start", [0, 10, PAGE - 3, PAGE, 2 * PAGE - 6, 2 * PAGE - 1])
@pytest.mark.parametrize("other", [OTHER, ONE.within(PixelLimits(max_pixels=32)), None])
def test_pages_from_the_one_on_in_which_another_image_begins_are_not_found(pool, start, other):
    """As long as the tokens are the same. Another area of the same file is another image."""
    histories = CachedHistories(pool)
    histories.keep([Ended(LONG, pool.take(4), 0, [at(start), at(2 * PAGE + 9)])])
    shown = [at(2 * PAGE + 9)] if other is None else [at(start, other), at(2 * PAGE + 9)]

    assert histories.find(LONG, [at(start), at(2 * PAGE + 9)]).length == 3 * PAGE
    assert histories.find(LONG, shown).length == start // PAGE * PAGE
    assert histories.find(LONG[: 3 * PAGE], [at(start), at(2 * PAGE + 9)]).length == 2 * PAGE


def test_an_image_behind_a_page_does_not_count_in_it(pool):
    histories = CachedHistories(pool)
    histories.keep([Ended(LONG, pool.take(4), 0, [at(3 * PAGE)])])

    assert histories.find(LONG, [at(3 * PAGE, OTHER)]).length == 3 * PAGE


def test_digests_do_not_depend_on_those_before_them():
    """An image before, at and behind an end; two frames of a video on the same tokens."""
    media = [at(5), at(20), at(20, OTHER), at(40)]
    ends = [4, 5, 6, 20, 21, 26, 40, 41, 100]

    alone = [*(next(digests(LONG, media, [end])) for end in ends)]

    assert [*digests(LONG, media, ends)] == alone
    assert len({*alone, *digests(LONG, media[:2] + media[3:], ends)}) == len(ends) + 5
