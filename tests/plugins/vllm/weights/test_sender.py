"""Packing: what is sent arrives, whatever the sizes of buckets and tensors are."""

from __future__ import annotations

import asyncio

import pytest
import torch

from rlhf_plugin_vllm.weights.sender import WeightSender
from rlhf_weights import ALIGNMENT, TensorSlot, open_buffer

CPU = torch.device("cpu")


def send(state, source_of, bucket_bytes):
    """Return what a receiver that copies out of each bucket ends up with, and the number of buckets."""
    received: dict[str, torch.Tensor] = {}
    buckets = []

    async def hand(info):
        buckets.append([slot["name"] for slot in info["slots"]])
        shared = open_buffer(info["buffer"], CPU)
        for plain in info["slots"]:
            slot = TensorSlot(**plain)
            assert slot.offset % ALIGNMENT == 0
            received[slot.name] = slot.view(shared).clone()

    sender = WeightSender(bucket_bytes)
    asyncio.run(sender.send(source_of(state), hand))
    sender.close()
    return received, buckets


@pytest.fixture
def weights():
    draw = torch.Generator().manual_seed(0)
    return {
        "a": torch.randn(3, 5, generator=draw),
        "b": torch.randn(700, generator=draw).to(torch.bfloat16),
        "scalar": torch.tensor(7.0),
        "empty": torch.zeros(0, 4),
        "large": torch.randn(50, 60, generator=draw),
        "strided": torch.randn(6, 8, generator=draw).t(),
        "last": torch.arange(9, dtype=torch.int64),
    }


@pytest.mark.parametrize("bucket_bytes", [1, 512, 2048, 1 << 20])
def test_every_weight_arrives_to_the_bit_whatever_the_bucket_holds(
    weights, source_of, bucket_bytes
):
    received, _ = send(weights, source_of, bucket_bytes)

    assert list(received) == list(weights)
    for name, expected in weights.items():
        assert received[name].dtype == expected.dtype
        torch.testing.assert_close(received[name], expected, rtol=0, atol=0)


def test_a_large_bucket_takes_all_at_once_and_a_small_one_cuts(weights, source_of):
    _, one = send(weights, source_of, 1 << 20)
    _, many = send(weights, source_of, 2048)

    # Rounded up to 256: a 256, b 1536, scalar 256 fill 2048; the 12000 bytes of large make a buffer of their own, whose
    # rest strided (at 12032) cannot have.
    assert one == [list(weights)]
    assert many[0] == ["a", "b", "scalar", "empty"]
    assert many[1] == ["large"]


def test_what_the_sender_writes_later_does_not_change_what_was_copied(source_of):
    first, _ = send({"a": torch.ones(4), "b": torch.full((4,), 2.0)}, source_of, 16)

    assert first["a"].tolist() == [1.0] * 4
    assert first["b"].tolist() == [2.0] * 4


def test_slots_are_told_once_until_they_change(source_of):
    told = []

    async def hand(info):
        told.append((info["number"], info["slots"] and [slot["name"] for slot in info["slots"]]))

    sender = WeightSender(2 * ALIGNMENT)
    first = {"a": torch.ones(4), "b": torch.ones(4), "c": torch.ones(4)}
    for state in (first, first, {**first, "b": torch.ones(5)}, first):
        asyncio.run(sender.send(source_of(state), hand))
    sender.close()

    assert told == [
        *((0, ["a", "b"]), (1, ["c"])),
        *((0, None), (1, None)),
        *((0, ["a", "b"]), (1, ["c"])),
        *((0, ["a", "b"]), (1, ["c"])),
    ]


def test_slots_that_a_worker_may_not_have_got_are_told_again(source_of):
    told = []

    async def hand(info):
        told.append(info["slots"] is not None)
        if len(told) == 1:
            raise ConnectionError

    sender = WeightSender(ALIGNMENT)
    with pytest.raises(ConnectionError):
        asyncio.run(sender.send(source_of({"a": torch.ones(4)}), hand))
    for _ in range(2):
        asyncio.run(sender.send(source_of({"a": torch.ones(4)}), hand))
    sender.close()

    assert told == [True, True, False]
