"""A rank's links, with receivers in threads: one that breaks ends neither the gathering of weights nor the others."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from tests.deadlines import HANG_S, PATIENT_S

from rlhf_core import RLHFError
from rlhf_plugin_ray.weights.rank_links import Offer, RankLinks, require_planned
from rlhf_testing.errors import has_code
from rlhf_weights import Place, ReceivingLink

CPU = torch.device("cpu")
BUCKET_BYTES = 1 << 16


class Gathered:
    """Weights in parts, which counts the parts that were asked for: other ranks would wait for them."""

    def __init__(self):
        draw = torch.Generator().manual_seed(0)
        self.weights = {f"w{i}": torch.randn(100, 90, generator=draw) for i in range(6)}
        self.num_parts = 0

    def __iter__(self):
        for name, weight in self.weights.items():
            self.num_parts += 1
            yield {name: weight}


@pytest.fixture
def gathered():
    return Gathered()


@pytest.fixture
def links(gathered):
    links = RankLinks()
    links.plan(gathered, BUCKET_BYTES)
    yield links
    links.close_all()


@pytest.fixture
def threads():
    with ThreadPoolExecutor() as pool:
        yield pool


def connected(links, threads, name, path="collective", timeout_s=HANG_S):
    """Make a link with one receiver, and return the receiver."""
    receiver = ReceivingLink(links.open(name, path, 1, "127.0.0.1", timeout_s), 0, CPU)
    joining = threads.submit(receiver.connect)
    asyncio.run(links.connect(name))
    joining.result(HANG_S)
    return receiver


def take(receiver, version, *, stop_after=None):
    received = {}
    with receiver.update(version) as buckets:
        for number, (slots, data) in enumerate(buckets):
            if number == stop_after:
                raise ValueError("does not fit")
            received |= {slot.name: slot.view(data).clone() for slot in slots}
    return received


@pytest.mark.parametrize("paths", [("memory", "collective"), ("collective", "collective")])
def test_weights_go_by_all_links_at_once(links, threads, gathered, paths):
    receivers = [connected(links, threads, str(i), path) for i, path in enumerate(paths)]
    for version in (1, 2):
        gathered.weights["w3"] += 1
        taking = [threads.submit(take, receiver, version) for receiver in receivers]
        assert asyncio.run(links.send(version, ["0", "1"], gathered)) == {}
        for received in (each.result(HANG_S) for each in taking):
            torch.testing.assert_close(received, gathered.weights, rtol=0, atol=0)


def test_a_broken_link_is_told_and_the_rest_goes_on(links, threads, gathered):
    well, ill = (connected(links, threads, name) for name in ("well", "ill"))
    gathered.num_parts = 0
    taking = [threads.submit(take, well, 1), threads.submit(take, ill, 1, stop_after=1)]

    broken = asyncio.run(links.send(1, ["well", "ill"], gathered))

    assert list(broken) == ["ill"]
    assert "does not fit" in broken["ill"]
    assert gathered.num_parts == len(gathered.weights)
    torch.testing.assert_close(taking[0].result(HANG_S), gathered.weights, rtol=0, atol=0)
    assert isinstance(taking[1].exception(HANG_S), ValueError)


def test_a_link_that_is_given_up_from_outside_ends_soon(links, threads, gathered):
    """The driver learns of a death that a broadcast does not show, such as one that NCCL waits for."""
    silent = connected(links, threads, "silent", "memory", timeout_s=PATIENT_S)

    async def play():
        sending = asyncio.create_task(links.send(1, ["silent"], gathered))
        await asyncio.sleep(0.3)
        assert not sending.done()
        links.give_up("silent", "engine 1 died")
        async with asyncio.timeout(HANG_S):
            return await sending

    assert "engine 1 died" in asyncio.run(play())["silent"]
    silent.close()


def test_weights_of_other_shapes_than_planned_end_the_update_for_the_receiver(
    links, threads, gathered
):
    receiver = connected(links, threads, "0")
    taking = threads.submit(take, receiver, 1)
    gathered.weights["w2"] = torch.zeros(3)

    with pytest.raises(RLHFError, match="the plan has w2", check=has_code("weights/other-plan")):
        asyncio.run(links.send(1, ["0"], gathered))
    assert "the plan has w2" in str(taking.exception(HANG_S))


def test_ranks_that_do_not_give_all_weights_are_refused():
    place = Place(machine="m", device=None)
    whole, half = (Offer(place=place, num_bytes=size) for size in (8, 4))

    assert require_planned([whole, whole]) == whole
    with pytest.raises(RLHFError, match=r"\[8, 4\]", check=has_code("weights/part-of-the-weights")):
        require_planned([whole, half])
