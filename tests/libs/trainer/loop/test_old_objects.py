"""Old objects of a run are out of the garbage collector's sight, and are given back at its end."""

import gc
import weakref
from contextlib import closing

import pytest

from rlhf_trainer.loop import old_objects
from rlhf_trainer.loop.old_objects import OldObjects


class Circle:
    """Garbage that only the collector finds, once nobody holds it."""

    def __init__(self):
        self.itself = self


pytestmark = pytest.mark.usefixtures("nothing_frozen")


@pytest.fixture
def settled(monkeypatch):
    monkeypatch.setattr(old_objects, "SETTLED_S", 0.0)


def searched(value):
    return any(one is value for one in gc.get_objects())


@pytest.mark.usefixtures("settled")
def test_what_is_alive_is_not_searched_until_the_end_and_garbage_goes_first():
    old, lost = Circle(), weakref.ref(Circle())

    with closing(OldObjects()) as objects:
        assert searched(old)
        objects.step_begins()

        assert lost() is None
        assert not searched(old)
        young = Circle()
        objects.step_begins()
        assert searched(young)
        gone = weakref.ref(young)
        del young
        gc.collect()
        assert gone() is None

    assert searched(old)
    assert gc.get_freeze_count() == 0


def test_a_short_run_changes_nothing(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(old_objects.time, "perf_counter", lambda: now[0])
    with closing(OldObjects()) as objects:
        for seconds in (0.0, 9.9):
            now[0] = 100.0 + seconds
            objects.step_begins()
            assert gc.get_freeze_count() == 0

        now[0] = 110.0
        objects.step_begins()
        assert gc.get_freeze_count() > 0


@pytest.mark.usefixtures("settled")
def test_objects_that_someone_else_froze_stay_frozen():
    gc.freeze()
    with closing(OldObjects()) as objects:
        objects.step_begins()
    assert gc.get_freeze_count() > 0


@pytest.mark.usefixtures("settled")
def test_a_collector_that_is_off_is_left_alone():
    gc.disable()
    try:
        with closing(OldObjects()) as objects:
            objects.step_begins()
            assert gc.get_freeze_count() == 0
    finally:
        gc.enable()
