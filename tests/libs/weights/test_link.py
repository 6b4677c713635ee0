"""A link between processes: weights arrive to the bit, and whoever dies, hangs or fails does not keep the others."""

from __future__ import annotations

import asyncio
import hashlib
import time

import pytest
import torch
from tests.cases import one_in
from tests.deadlines import HANG_S, PATIENT_S

from rlhf_core import RLHFError
from rlhf_testing.errors import has_code
from rlhf_weights import ForeignConnection, LinkBroken, group

PATHS = ["memory", "collective"]


def digest_of(weights):
    digest = hashlib.sha256()
    for name, tensor in weights.items():
        digest.update(name.encode())
        digest.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()


def send(link, weights, version):
    async def play():
        await link.start(version)
        for name, tensor in weights.items():
            await link.put(name, tensor)
        await link.finish()

    asyncio.run(play())


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("num_receivers", [2, pytest.param(1, marks=pytest.mark.matrix)])
def test_weights_of_several_updates_arrive_to_the_bit(link, receiver, weights, path, num_receivers):
    sender = link(path, num_receivers)
    others = [
        receiver(sender.invitation, i, (3, ""), (4, ""), (5, "")) for i in range(num_receivers)
    ]
    sender.connect()
    sent = []
    for version in (3, 4, 5):
        for tensor in weights.values():
            tensor += 1.0
        sent.append(digest_of(weights))
        send(sender, weights, version)

    for other in others:
        assert other.communicate(timeout=HANG_S)[0].split() == sent


@pytest.mark.slow
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("misbehavior", "reason"),
    [("die", "weight link test"), ("raise", "rank 2: does not fit")],
)
def test_a_receiver_that_fails_ends_the_update_for_all_soon(
    link, receiver, weights, path, misbehavior, reason
):
    sender = link(path, 2, timeout_s=PATIENT_S)
    well = receiver(sender.invitation, 0, (0, ""), (1, ""))
    receiver(sender.invitation, 1, (0, ""), (1, misbehavior))
    sender.connect()
    send(sender, weights, 0)

    begin = time.monotonic()
    with pytest.raises(LinkBroken, match=reason):
        send(sender, weights, 1)
    out = well.communicate(timeout=HANG_S)[0].splitlines()
    assert time.monotonic() - begin < HANG_S

    assert out[0] == digest_of(weights)
    assert out[1].startswith("LinkBroken: weight link test")
    with pytest.raises(LinkBroken):  # it stays broken: a new one has to be made
        send(sender, weights, 2)


@pytest.mark.slow
@pytest.mark.parametrize("path", one_in(2, PATHS))
def test_a_receiver_that_hangs_is_waited_for_until_the_deadline(link, receiver, weights, path):
    sender = link(path, 1, timeout_s=10.0)
    other = receiver(sender.invitation, 0, (0, "hang"))
    # The import of torch is not what the deadline is for.
    assert other.stdout.readline() == "imported\n"
    sender.connect()

    begin = time.monotonic()
    with pytest.raises(LinkBroken, match="took longer than 10 s"):
        send(sender, weights, 0)
    sender.close()  # does not wait for what hangs
    assert time.monotonic() - begin < 10 + HANG_S
    assert other.poll() is None


@pytest.mark.parametrize("path", PATHS)
def test_the_sender_giving_up_ends_the_receivers_wait(listener, link, path):
    sender = link(path, 1, timeout_s=PATIENT_S)
    other = listener(sender.invitation, 0)
    sender.connect()

    async def play():
        await sender.start(0)
        sender.give_up("engine 1 died")

    asyncio.run(play())

    assert "given up by rank 0: engine 1 died" in other.error()


def test_another_user_in_the_group_breaks_the_link(listener, link, monkeypatch):
    def form_locally(*_):
        raise ForeignConnection("got a connection from user 65534")

    monkeypatch.setattr(group, "form_locally", form_locally)
    sender = link("memory", 1)
    other = listener(sender.invitation, 0)

    with pytest.raises(LinkBroken, match="got a connection from user 65534"):
        sender.connect()
    assert "got a connection from user 65534" in other.error()


def test_a_receiver_that_does_not_come_is_named(link):
    sender = link("memory", 2, timeout_s=0.5)

    with pytest.raises(LinkBroken, match=r"here/1, here/2 did not come within 0\.5 s"):
        sender.connect()


def test_another_version_than_expected_is_refused(listener, link, weights):
    sender = link("memory")
    other = listener(sender.invitation, 7)
    sender.connect()

    with pytest.raises(LinkBroken):
        send(sender, weights, 6)

    assert "expected weights of version 7, got 6" in other.error()


def test_weights_that_are_not_those_of_the_plan_are_refused(listener, link):
    sender = link("memory")
    listener(sender.invitation, 0)
    sender.connect()

    async def put(name, tensor):
        await sender.start(0)
        await sender.put(name, tensor)

    with pytest.raises(
        RLHFError,
        match=r"the plan has a float32 \[300, 700\] next, got a .*\[3\]",
        check=has_code("weights/other-plan"),
    ):
        asyncio.run(put("a", torch.zeros(3)))
    sender.give_up("the test is over")


def test_an_update_that_ends_early_is_refused(listener, link, weights):
    sender = link("memory")
    listener(sender.invitation, 0)
    sender.connect()

    with pytest.raises(RLHFError, match=r"6 weights.*b", check=has_code("weights/not-all-sent")):
        send(sender, {"a": weights["a"]}, 0)
    sender.give_up("the test is over")
