"""Where weights went, seen by watching the copies of a loader as vLLM's are."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from rlhf_plugin_vllm.worker.known_copies import KnownCopies
from rlhf_plugin_vllm.worker.recorder import CopyRecorder
from rlhf_weights import aligned, slot_for


class Stacked(nn.Module):
    """Query, key and value in one parameter; a vocabulary padded to 8; experts in a stack, transposed."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Parameter(torch.zeros(8, 4), requires_grad=False)
        self.embed = nn.Parameter(torch.zeros(8, 4), requires_grad=False)
        self.experts = nn.Parameter(torch.zeros(2, 4, 3), requires_grad=False)

    def load_weights(self, weights):
        rows = {"q": (0, 4), "k": (4, 2), "v": (6, 2)}
        for name, weight in weights:
            if name in rows:
                self.qkv.data.narrow(0, *rows[name]).copy_(weight)
            elif name == "embed":
                self.embed[: weight.shape[0]].data.copy_(weight)
            elif name.startswith("expert"):
                self.experts.data[int(name[-1])].copy_(weight.t())
            elif name == "halves":
                self.qkv.data[:2].copy_(weight[:, :4])
                self.qkv.data[2:4].copy_(weight[:, 4:])


def packed(state):
    slots, end = [], 0
    for name, tensor in state.items():
        slots.append(slot_for(name, tensor, aligned(end)))
        end = aligned(slots[-1].offset + slots[-1].nbytes)
    bucket = torch.zeros(end, dtype=torch.uint8)
    for slot in slots:
        slot.view(bucket).copy_(state[slot.name])
    return slots, bucket


def load(state, model=None):
    model = model or Stacked()
    slots, bucket = packed(state)
    with CopyRecorder(bucket, slots) as recorder:
        model.load_weights((slot.name, slot.view(bucket)) for slot in slots)
    return model, recorder.placed


@pytest.fixture
def state():
    draw = torch.Generator().manual_seed(1)
    shapes = {"q": (4, 4), "k": (2, 4), "v": (2, 4), "embed": (6, 4)}
    shapes |= {"expert0": (3, 4), "expert1": (3, 4)}
    return {name: torch.randn(shape, generator=draw) for name, shape in shapes.items()}


def test_weights_are_read_back_from_where_they_are_kept(state):
    _, placed = load(state)

    for name, expected in state.items():
        assert placed[name].is_whole()
        torch.testing.assert_close(placed[name].read(), expected, rtol=0, atol=0)


def test_reading_sees_what_the_model_holds_not_what_was_sent(state):
    model, placed = load(state)

    model.qkv.data[5, 2] = 42.0  # row 1 of k

    assert float(placed["k"].read()[1, 2]) == 42.0


def test_a_weight_that_was_split_is_put_together_again():
    weight = torch.arange(16.0).view(2, 8)

    model, placed = load({"halves": weight})

    assert len(placed["halves"].parts) == 2
    torch.testing.assert_close(placed["halves"].read(), weight)
    torch.testing.assert_close(model.qkv.data[:2], weight[:, :4])


def test_a_part_that_the_model_makes_contiguous_first_is_known(state):
    """As vLLM loads the transposed experts of GPT-OSS."""
    stack, kept = state["expert0"], torch.zeros(4, 3)
    slots, bucket = packed({"stack": stack})
    with CopyRecorder(bucket, slots) as recorder:
        kept.copy_(slots[0].view(bucket).permute(1, 0).contiguous())

    torch.testing.assert_close(kept, stack.T, rtol=0, atol=0)
    torch.testing.assert_close(recorder.placed["stack"].read(), stack, rtol=0, atol=0)


def test_a_weight_that_went_nowhere_has_no_parts(state):
    _, placed = load({**state, "unknown": torch.ones(3)})

    assert placed["unknown"].parts == []


def test_a_weight_that_is_kept_in_part_is_not_whole():
    class Shard(Stacked):
        def load_weights(self, weights):
            for _, weight in weights:
                self.qkv.data[:2].copy_(weight[2:])

    _, placed = load({"q": torch.ones(4, 4)}, Shard())

    assert placed["q"].parts
    assert not placed["q"].is_whole()


def test_a_weight_equals_what_was_copied_of_it_wherever_it_lies(state):
    _, placed = load(state)
    bucket = torch.cat([torch.randn(7), state["q"].flatten(), state["embed"].flatten()])
    same, other = bucket[7:23].view(4, 4), bucket[3:19].view(4, 4)

    assert placed["q"].equals(same)
    assert not placed["q"].equals(other)
    assert placed["expert1"].equals(state["expert1"])
    assert not placed["expert1"].equals(state["expert0"])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_known_copies_put_other_weights_where_the_model_did(state, dtype):
    """Stacked, padded, transposed and split ones, whatever type they arrive in."""
    state["halves"] = torch.arange(16.0).view(2, 8)
    first = {name: weight.to(dtype) for name, weight in state.items() if name not in "qkv"}
    second = {name: torch.randn(weight.shape).to(dtype) for name, weight in first.items()}
    model, placed = load(first)
    slots, bucket = packed(second)

    KnownCopies(slots, placed).repeat(bucket)

    expected, _ = load(second)
    for parameter, other in zip(model.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(parameter, other, rtol=0, atol=0)


def test_a_weight_in_the_layout_of_the_checkpoint_is_read_without_a_copy(state):
    model, placed = load(state)

    assert placed["k"].read().data_ptr() == model.qkv.data[4:].data_ptr()
    assert placed["expert0"].read().data_ptr() != model.experts.data_ptr()
