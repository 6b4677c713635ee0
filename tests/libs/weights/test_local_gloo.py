"""A group of gloo on one machine has no place for another user: not while it forms, and not afterwards."""

import os
import secrets
import socket
import sys
import threading
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from tests.deadlines import HANG_S
from tests.libs.weights.strangers import STRANGER, needs_root, stranger

from rlhf_weights import local_gloo
from rlhf_weights.connections import (
    ESTABLISHED,
    LISTENS,
    ForeignConnection,
    connections,
    own_sockets,
    read_tables,
)
from rlhf_weights.local_gloo import form_all_locally, form_locally, kernel_tells

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux alone tells users")
LIMIT = timedelta(seconds=HANG_S)


def listening():
    """Addresses at which this process listens."""
    own = own_sockets()
    return {
        row.near for row in connections(read_tables()) if row.state == LISTENS and row.inode in own
    }


class LateReader(dist.Store):
    """A store whose reader waits a second before the first value, with his own values already there for others."""

    def __init__(self, store):
        super().__init__()
        self._store, self._waits = store, [1.0]

    def get(self, key):
        if self._waits:
            time.sleep(self._waits.pop())
        return self._store.get(key)

    def set(self, key, value):
        self._store.set(key, value)

    def wait(self, keys, *limit):
        if self._waits:
            time.sleep(self._waits.pop())
        self._store.wait(keys, *limit)


class Member(threading.Thread):
    """A member of a group of two, which then sums."""

    def __init__(self, store, rank, before=lambda: None):
        super().__init__(daemon=True)
        self._store, self._rank, self._before = store, rank, before
        self.total, self.error, self.group = None, None, None
        self.start()

    def run(self):
        def make(options):
            self._before()
            return dist.ProcessGroupGloo(self._store, self._rank, 2, options)

        try:
            self.group = form_locally(make, self._store, self._rank, 2, LIMIT)
            numbers = torch.tensor([1.0 + self._rank])
            self.group.allreduce([numbers], dist.AllreduceOptions()).wait()
            self.total = float(numbers)
        except Exception as error:  # shown by the test
            self.error = error

    def ended(self):
        self.join(HANG_S)
        assert not self.is_alive()
        return self


def test_a_group_sums_and_afterwards_answers_nobody():
    before = listening()
    store = dist.HashStore()

    members = [Member(store, rank) for rank in range(2)]

    assert [member.ended().error for member in members] == [None, None]
    assert [member.total for member in members] == [3.0, 3.0]
    made = listening() - before
    assert len(made) == 2
    for address, port in made:
        assert address == "0100007F"
        with pytest.raises(TimeoutError):
            socket.create_connection(("127.0.0.1", port), timeout=0.2)
    again = torch.ones(1)
    works = [member.group.allreduce([again.clone()], dist.AllreduceOptions()) for member in members]
    for work in works:
        work.wait()


def test_the_kernel_tells_both_ends_of_a_connection():
    assert kernel_tells.__wrapped__()


def test_where_tables_name_nobody_a_group_forms_all_the_same_and_says_so(monkeypatch, caplog):
    def nobody():
        rows = [line.split() for line in read_tables().splitlines() if line]
        return "\n".join(
            " ".join([*row[:9], "0"] if row[3] == ESTABLISHED else row) for row in rows
        )

    monkeypatch.setattr(local_gloo, "read_tables", nobody)
    monkeypatch.setattr(local_gloo, "kernel_tells", kernel_tells.__wrapped__)
    store = dist.HashStore()

    members = [Member(store, rank) for rank in range(2)]

    assert [member.ended().error for member in members] == [None, None]
    assert [member.total for member in members] == [3.0, 3.0]
    assert "other users of the machine are not kept off the ports" in caplog.text


@needs_root
@pytest.mark.parametrize("reader", [lambda store: store, LateReader], ids=["at once", "late"])
@pytest.mark.parametrize("pairs", [(0, 1), (7,)])
def test_a_stranger_who_connects_while_a_group_forms_ends_it_by_name(pairs, reader):
    """gloo takes the number of a pair from who connects: 0 or 1 is a member's, and 7 nobody's.

    The first member takes a stranger of number 0 or 1 for the second, and has all that it waits for before the second,
    who is late, connects.
    """
    before, store = listening(), dist.HashStore()
    listens, go_on = threading.Event(), threading.Event()

    def wait():
        listens.set()
        assert go_on.wait(HANG_S)

    first = Member(store, 0, wait)
    assert listens.wait(HANG_S)
    ((_, port),) = listening() - before
    code = (
        f"lines = [socket.create_connection(('127.0.0.1', {port})) for _ in {pairs}]\n"
        f"for pair, line in zip({pairs}, lines):\n    line.sendall(pair.to_bytes(8, 'little'))\n"
        "print('ready', flush=True)\ninput()"
    )
    with stranger(code):
        go_on.set()
        second = Member(reader(store), 1)
        assert isinstance(first.ended().error, ForeignConnection), first.error
        expected = f"of user {os.geteuid()}, got a connection from user {STRANGER} at rank 0"
        assert expected in str(first.error)
        assert second.ended().total is None


def test_groups_of_other_libraries_form_locally_too(monkeypatch, tmp_path):
    monkeypatch.setattr(dist.ProcessGroupGloo, "__init__", dist.ProcessGroupGloo.__init__)
    before = listening()
    form_all_locally()
    form_all_locally()
    name = f"test-{secrets.token_hex(4)}"
    store = dist.PrefixStore(name, dist.HashStore())

    group = dist.ProcessGroupGloo(store, 0, 1, timeout=LIMIT)

    assert group.size() == 1
    ((address, port),) = listening() - before
    assert address == "0100007F"
    with pytest.raises(TimeoutError):
        socket.create_connection(("127.0.0.1", port), timeout=0.2)
