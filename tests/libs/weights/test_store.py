"""The store at which processes of one machine meet is open to nobody else."""

import os
import sys
from datetime import timedelta
from pathlib import Path

import pytest
from tests.open_places import listening

from rlhf_weights import is_loopback, open_store, reach_store

LIMIT = timedelta(seconds=30)


@pytest.fixture
def store():
    made = open_store("127.0.0.1", 0, LIMIT)
    yield made
    made.close()


def reached(store):
    return reach_store("127.0.0.1", store.number, LIMIT)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere it is torch's, on the loopback")
def test_a_store_of_one_machine_has_no_port():
    before = listening(os.getpid())
    store = open_store("127.0.0.1", 0, LIMIT)

    (door,) = listening(os.getpid()) - before

    assert door == f"@rlhf-meeting-{os.geteuid()}-{store.number}"
    store.close()
    assert door not in listening(os.getpid())


def test_what_one_end_sets_the_other_gets(store):
    other = reached(store)

    other.set("key", "value")

    assert store.get("key") == b"value"
    assert store.check(["key"])
    assert not store.check(["key", "another"])
    other.close()


def test_stores_of_one_process_are_apart(store):
    second = open_store("127.0.0.1", 0, LIMIT)
    store.set("key", "first")

    assert not second.check(["key"])
    second.close()


def test_who_waits_for_a_value_hears_of_the_openers_end_and_still_gets_what_is_there(store):
    other = reached(store)
    store.set("last", "words")

    store.close()

    assert other.get("last") == b"words"
    with pytest.raises(RuntimeError, match="has closed it, or ended"):
        other.check(["never set"])
    other.close()


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="descriptors are counted there")
def test_stores_that_come_and_go_leave_no_descriptors(store):
    reached(store).close()
    before = len(os.listdir("/proc/self/fd"))

    for _ in range(3):
        new = open_store("127.0.0.1", 0, LIMIT)
        reached(new).close()
        new.close()

    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("127.8.0.1", True),
        ("localhost", True),
        ("::1", True),
        ("10.0.0.1", False),
        ("node-3", False),
    ],
)
def test_the_loopback_is_known_by_its_addresses(host, expected):
    assert is_loopback(host) is expected
