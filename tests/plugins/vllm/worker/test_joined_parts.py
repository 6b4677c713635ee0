"""Copies of parts of a weight at equal distances are one copy, and others stay apart."""

from __future__ import annotations

import torch

from rlhf_plugin_vllm.worker.joined_parts import joined
from rlhf_plugin_vllm.worker.recorder import CopyRecorder
from rlhf_weights import slot_for

EXPERTS, WIDTH, HIDDEN = 3, 4, 5


def copied(shape, copies):
    """Parts of one weight of ``shape`` after ``copies(weight)`` was run."""
    weight = torch.arange(torch.Size(shape).numel(), dtype=torch.float32).view(shape)
    bucket = weight.flatten().view(torch.uint8)
    slot = slot_for("w", weight, 0)
    with CopyRecorder(bucket, [slot]) as recorder:
        copies(slot.view(bucket))
    return weight, recorder.placed["w"]


def test_experts_that_came_one_by_one_are_one_view_of_the_stack():
    stack = torch.zeros(EXPERTS, 2 * WIDTH, HIDDEN)

    def by_expert(weight):
        for expert in (2, 0, 1):
            for half in (0, 1):
                rows = slice(half * WIDTH, (half + 1) * WIDTH)
                stack[expert, rows].copy_(weight[expert, rows])

    weight, placed = copied(stack.shape, by_expert)
    assert len(placed.parts) == 2 * EXPERTS

    placed.parts = joined(placed.parts)

    (part,) = placed.parts
    assert part.kept.shape == (2 * EXPERTS, WIDTH, HIDDEN)
    assert torch.equal(placed.read(), weight)
    assert placed.read().data_ptr() == stack.data_ptr()
    assert placed.is_whole()


def test_a_shard_of_each_expert_is_joined_with_the_distance_of_whole_experts():
    """A worker of two has every second row of the weight's halves, in a stack half as large."""
    stack = torch.zeros(EXPERTS, WIDTH, HIDDEN)

    def own_rows(weight):
        for expert in range(EXPERTS):
            stack[expert].copy_(weight[expert, WIDTH:])

    weight, placed = copied((EXPERTS, 2 * WIDTH, HIDDEN), own_rows)
    region = placed.held()

    placed.parts = joined(placed.parts)

    assert len(placed.parts) == 1
    assert torch.equal(placed.held(), region)
    assert torch.equal(placed.read()[:, WIDTH:], weight[:, WIDTH:])


def test_other_distances_and_other_parameters_stay_apart():
    far, near = torch.zeros(9, HIDDEN), torch.zeros(1, HIDDEN)

    def scattered(weight):
        for row, place in enumerate((far[0], far[1], far[5], near[0])):
            place.copy_(weight[row])

    weight, placed = copied((4, HIDDEN), scattered)

    placed.parts = joined(placed.parts)

    assert [tuple(part.kept.shape) for part in placed.parts] == [(2, HIDDEN), (HIDDEN,), (HIDDEN,)]
    assert torch.equal(placed.read(), weight)


def test_elements_that_are_kept_twice_stay_two_copies():
    kept = torch.zeros(2, HIDDEN)

    def twice(weight):
        kept[0].copy_(weight)
        kept[1].copy_(weight)

    _, placed = copied((HIDDEN,), twice)

    assert joined(placed.parts) == placed.parts


def test_a_transposed_stack_is_joined():
    stack = torch.zeros(EXPERTS, HIDDEN, WIDTH)

    def turned(weight):
        for expert in range(EXPERTS):
            stack[expert].copy_(weight[expert].T)

    weight, placed = copied((EXPERTS, WIDTH, HIDDEN), turned)

    placed.parts = joined(placed.parts)

    assert len(placed.parts) == 1
    assert torch.equal(placed.read(), weight)
    assert torch.equal(stack, weight.mT)
