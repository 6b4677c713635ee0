"""Images that episodes draw are kept within their room, and none goes that a sample in work needs."""

import logging
import os
import time

import pytest
from tests.images import noisy, reference_of, saved

from rlhf_core.media.store import MediaStore
from rlhf_data.drawn_images import DrawnImages


@pytest.fixture
def store(tmp_path) -> MediaStore:
    return MediaStore(tmp_path / "media")


def put(store, number: int, *, age_s: float = 0.0):
    content = saved(noisy(20 + number, 12))
    reference = reference_of(content)
    store.put(content, reference)
    then = time.time() - age_s
    os.utime(store.path(reference), (then, then))
    return reference


def drawn_in(store, most_bytes: float, num_steps: int = 1) -> DrawnImages:
    return DrawnImages(store.folder, most_bytes, num_steps)


def test_the_images_that_were_used_longest_ago_go_until_the_others_fit(store):
    old, middle, new = (put(store, number, age_s=300 - 100 * number) for number in range(3))
    drawn = drawn_in(store, middle.num_bytes + new.num_bytes)
    drawn.step_begins()

    left = drawn.clean()

    assert left == middle.num_bytes + new.num_bytes
    assert [store.path(one).exists() for one in (old, middle, new)] == [False, True, True]


def test_an_image_that_is_drawn_again_is_new(store):
    first, second = put(store, 0, age_s=300), put(store, 1, age_s=200)
    store.put(store.path(first).read_bytes(), first)
    drawn = drawn_in(store, first.num_bytes)
    time.sleep(0.01)
    drawn.step_begins()

    drawn.clean()

    assert store.path(first).exists()
    assert not store.path(second).exists()


def test_images_of_steps_whose_samples_are_in_work_stay_and_this_is_told_once(store, caplog):
    drawn = drawn_in(store, 1.0, num_steps=2)
    images = []
    for number in range(4):
        drawn.step_begins()
        images.append(put(store, number))
        with caplog.at_level(logging.WARNING):
            drawn.clean()
        time.sleep(0.01)

    assert [store.path(one).exists() for one in images] == [False, False, True, True]
    (record,) = caplog.records
    assert "more than --rollout.drawn_images_gib" in record.getMessage()


def test_links_to_files_stay_and_take_no_room(store, tmp_path):
    content = saved(noisy())
    (tmp_path / "a.png").write_bytes(content)
    reference = reference_of(content)
    store.link(tmp_path / "a.png", reference)
    drawn = drawn_in(store, 1.0)
    drawn.step_begins()

    assert drawn.clean() == 0
    assert store.read(reference) == content


def test_nothing_was_drawn_yet(store):
    assert drawn_in(store, 1.0).clean() == 0


def test_an_image_that_went_is_written_again(store):
    reference = put(store, 0, age_s=300)
    content = store.path(reference).read_bytes()
    drawn = drawn_in(store, 1.0)
    drawn.step_begins()
    drawn.clean()
    assert not store.path(reference).exists()

    store.put(content, reference)

    assert store.read(reference) == content
