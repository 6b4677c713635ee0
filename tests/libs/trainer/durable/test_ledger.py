"""The ledger accounts for every group, across kills and resumes."""

from contextlib import ExitStack, closing

import pytest

from rlhf_core.contracts import Uid
from rlhf_core.errors import CheckpointError
from rlhf_testing.errors import has_code
from rlhf_trainer.durable.records import Ledger, RunningDigest, groups_of, replay

A, B = {(0, 1): 4}, {(0, 2): 4}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ledger.jsonl"


@pytest.fixture
def open_ledger(path):
    """Opens the ledger, once more at each call, and closes everything at the end."""
    with ExitStack() as stack:

        def opened(num_bytes=0):
            begun = RunningDigest()
            if num_bytes:
                begun.add_file(path, up_to=num_bytes)
            return stack.enter_context(closing(Ledger(path, begun)))

        yield opened


def test_planned_work_is_settled_by_training_or_dropping(path, open_ledger):
    ledger = open_ledger()
    ledger.planned(1, A | B)
    ledger.trained(1, A, version=0)

    assert replay(path).unsettled() == ["0.2"]

    ledger.dropped(1, B, reason="zero_variance")

    assert replay(path).unsettled() == []


def test_training_twice_does_not_balance(path, open_ledger):
    ledger = open_ledger()
    ledger.planned(1, A)
    ledger.trained(1, A, version=0)
    ledger.trained(2, A, version=1)

    assert replay(path).unsettled() == ["0.1"]


def test_resuming_voids_the_steps_after_the_checkpoint(path, open_ledger):
    ledger = open_ledger()
    for step, group in ((1, A), (2, B)):
        ledger.planned(step, group)
        ledger.trained(step, group, version=step - 1)
        if step == 1:
            known = ledger.extent.num_bytes
    ledger.planned(3, {(0, 3): 4})
    ledger.close()
    ledger = open_ledger(known)
    ledger.resumed(1)

    balance = replay(path)

    assert dict(balance.trained) == {"0.1": 4}
    assert balance.unsettled() == []


def test_a_line_that_a_kill_cut_off_is_left_out(path, open_ledger):
    ledger = open_ledger()
    ledger.planned(1, A)
    ledger.trained(1, A, version=0)
    known = ledger.extent.num_bytes
    ledger.close()
    with path.open("a") as file:
        file.write('{"step":2,"event":"plan')

    assert replay(path).unsettled() == []

    open_ledger(known).resumed(1)

    assert dict(replay(path).trained) == {"0.1": 4}


def test_damage_in_what_is_void_does_not_matter(path, open_ledger):
    ledger = open_ledger()
    ledger.planned(1, A)
    ledger.trained(1, A, version=0)
    known = ledger.extent.num_bytes
    ledger.close()
    with path.open("ab") as file:
        file.write(b'{"step": \xff\n[]\n{"event": "planned", "groups": 3}\n')
    with pytest.raises(CheckpointError):
        replay(path)

    open_ledger(known).resumed(1)

    assert dict(replay(path).trained) == {"0.1": 4}
    assert replay(path).unsettled() == []


@pytest.mark.parametrize(
    "line",
    [
        b"{broken",
        b"[]",
        b'{"event": "planned"}',
        b'{"event": "flown", "groups": {}}',
        b'{"event": "resumed", "step": 1}',
        b'{"event": "planned", "groups": {"0.1": "four"}}',
        b"\xff",
        100_000 * b"[",
    ],
    ids=lambda line: line[:20].decode(errors="replace"),
)
def test_a_damaged_line_is_reported_with_its_number(path, open_ledger, line):
    ledger = open_ledger()
    ledger.planned(1, A)
    ledger.planned(1, B)
    ledger.close()
    path.write_bytes(line + b"\n" + path.read_bytes())

    with pytest.raises(
        CheckpointError, match=r"ledger\.jsonl:1", check=has_code("checkpoint/damaged-ledger")
    ):
        replay(path)


def test_later_lines_can_be_left_out_of_the_balance(path, open_ledger):
    ledger = open_ledger()
    ledger.planned(1, A)
    ledger.trained(1, A, version=0)
    known = ledger.extent.num_bytes
    ledger.planned(2, B)

    assert replay(path, num_bytes=known).unsettled() == []


def test_segments_of_an_episode_count_once():
    uids = [Uid(0, 1, 0, 0), Uid(0, 1, 0, 1), Uid(0, 1, 1, 0), Uid(1, 1, 0, 0)]

    assert groups_of(uids) == {(0, 1): 2, (1, 1): 1}
