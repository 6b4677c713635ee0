"""Packed attention equals each sequence on its own."""

import itertools
import math

import pytest
import torch

from rlhf_torch.packed import packing
from rlhf_torch.packed.packing import MAX_MATERIALIZED, Blocks, PackedLayout

HEADS, KV_HEADS, WIDTH = 4, 2, 8
CPU = torch.device("cpu")


def slow_attention(query, key, value, *, scaling, window, softcap):
    """One sequence (T, H, K), one query at a time, in float64."""
    length = len(query)
    out = torch.empty(length, HEADS, WIDTH, dtype=torch.float64)
    for head in range(HEADS):
        k, v = key[:, head // (HEADS // KV_HEADS)].double(), value[:, head // 2].double()
        for at in range(length):
            first = max(0, at + 1 - (window or length))
            scores = k[first : at + 1] @ query[at, head].double() * scaling
            if softcap:
                scores = softcap * torch.tanh(scores / softcap)
            out[at, head] = scores.softmax(0) @ v[first : at + 1]
    return out


def random_parts(num_tokens, dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    shapes = [(1, heads, num_tokens, WIDTH) for heads in (HEADS, KV_HEADS, KV_HEADS)]
    return [torch.randn(shape, generator=generator).to(dtype).requires_grad_() for shape in shapes]


@pytest.mark.parametrize("lengths", [(5, 3, 7), (4, 4), (1,), (1, 6)])
@pytest.mark.parametrize("window", [None, 1, 3, 100])
@pytest.mark.parametrize("softcap", [None, 5.0])
def test_packed_attention_is_that_of_each_sequence_alone(lengths, window, softcap):
    offsets = [0, *torch.tensor(lengths).cumsum(0).tolist()]
    query, key, value = random_parts(offsets[-1])

    actual = PackedLayout(offsets, CPU).attend(
        0, query, key, value, scaling=0.3, sliding_window=window, softcap=softcap
    )

    expected = torch.cat(
        [
            slow_attention(
                *(part[0, :, first:last].transpose(0, 1) for part in (query, key, value)),
                scaling=0.3,
                window=window,
                softcap=softcap,
            )
            for first, last in itertools.pairwise(offsets)
        ]
    )
    torch.testing.assert_close(actual[0], expected.float(), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("window", [None, 2, 100])
@pytest.mark.parametrize("softcap", [None, 5.0])
@pytest.mark.parametrize("in_windows", [False, True])
def test_tokens_of_a_block_see_each_other_as_far_back_as_the_window_reaches(
    window, softcap, in_windows
):
    """The first token of the row is in a block, and so is padding's stand-in, which nobody may see."""
    offsets, blocks = [0, 4, 10, 12], torch.tensor([0, 0, 0, -1, -1, 1, 1, 2, 2, -1, -1, -1])
    query, key, value = random_parts(12)

    layout = PackedLayout(offsets, CPU, Blocks(blocks, in_windows))
    # A layer without a window first, whose mask must not be that of the other one.
    layout.attend(0, query, key, value, scaling=0.3, sliding_window=None, softcap=softcap)
    actual = layout.attend(
        0, query, key, value, scaling=0.3, sliding_window=window, softcap=softcap
    )
    if in_windows and not window:
        blocks = torch.full_like(blocks, -1)

    expected = torch.empty(12, HEADS, WIDTH, dtype=torch.float64)
    for first, last in itertools.pairwise(offsets):
        for at, head in itertools.product(range(first, last), range(HEADS)):
            seen = [
                other
                for other in range(first, last)
                if (other <= at or blocks[other] == blocks[at] != -1)
                and at - other < (window or 12)
            ]
            keys, values = (part[0, head // 2, seen].double() for part in (key, value))
            scores = keys @ query[0, head, at].double() * 0.3
            if softcap:
                scores = softcap * torch.tanh(scores / softcap)
            expected[at, head] = scores.softmax(0) @ values
    torch.testing.assert_close(actual[0], expected.float(), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize(
    ("lengths", "used"), [((4, 4, 4), True), ((4, 4, 3), False), ((4,), False)]
)
def test_several_sequences_of_one_length_go_to_the_kernel_for_them(monkeypatch, lengths, used):
    calls = []

    def noted(layout, query, *_):
        calls.append("varlen")
        return query.transpose(1, 2)

    monkeypatch.setattr(packing, "has_varlen_kernel", lambda query: True)
    monkeypatch.setattr(packing, "_cudnn_is_faster", lambda device: True)
    monkeypatch.setattr(PackedLayout, "_varlen", noted)
    offsets = [0, *itertools.accumulate(lengths)]
    query, key, value = random_parts(offsets[-1])
    options = {"scaling": 0.3, "softcap": None}

    actual = PackedLayout(offsets, CPU).attend(0, query, key, value, sliding_window=None, **options)

    assert calls == ([] if used else ["varlen"])
    if used:
        parts = [part[0].transpose(0, 1).unflatten(0, (-1, 4)) for part in (query, key, value)]
        for number, sequence in enumerate(zip(*parts, strict=True)):
            expected = slow_attention(*sequence, window=None, **options)
            rows = actual[0, 4 * number : 4 * number + 4]
            torch.testing.assert_close(rows, expected.float(), atol=1e-6, rtol=1e-5)
    PackedLayout(offsets, CPU).attend(0, query, key, value, sliding_window=2, **options)
    assert calls[-1:] == ["varlen"], "the other kernel knows no window"


@pytest.mark.parametrize("softcap", [None, 5.0])
def test_a_sequence_gets_no_gradient_from_its_neighbours(softcap):
    query, key, value = random_parts(12)

    output = PackedLayout([0, 5, 8, 12], CPU).attend(
        0, query, key, value, scaling=1.0, sliding_window=None, softcap=softcap
    )
    output[0, 5:8].square().sum().backward()

    for part in (query, key, value):
        outside = torch.cat([part.grad[0, :, :5], part.grad[0, :, 8:]], dim=1)
        torch.testing.assert_close(outside, torch.zeros_like(outside), atol=0, rtol=0)
    assert key.grad[0, :, 5:8].abs().min() > 0


def test_gradients_are_those_of_the_slow_loop():
    query, key, value = random_parts(9)
    layout = PackedLayout([0, 4, 9], CPU)
    weights = torch.randn(9, HEADS, WIDTH, generator=torch.Generator().manual_seed(1))

    out = layout.attend(0, query, key, value, scaling=0.5, sliding_window=None, softcap=None)
    actual = torch.autograd.grad((out[0] * weights).sum(), [query, key, value])

    rows = [part[0].transpose(0, 1) for part in (query, key, value)]
    expected_out = torch.cat(
        [
            slow_attention(*(part[span] for part in rows), scaling=0.5, window=None, softcap=None)
            for span in (slice(0, 4), slice(4, 9))
        ]
    )
    expected = torch.autograd.grad((expected_out * weights).sum(), [query, key, value])
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("longest", [7, MAX_MATERIALIZED + 1])
def test_bfloat16_is_close_to_float32_on_both_sides_of_the_materialized_limit(longest):
    offsets = [0, longest, longest + 3]
    exact = random_parts(offsets[-1])
    rounded = random_parts(offsets[-1], torch.bfloat16)
    options = {"scaling": 0.3, "sliding_window": None, "softcap": None}

    actual = PackedLayout(offsets, CPU).attend(0, *rounded, **options)
    expected = PackedLayout(offsets, CPU).attend(0, *exact, **options)

    # bfloat16 holds 8 bits, values are of size 1
    torch.testing.assert_close(actual.float(), expected, atol=0.03, rtol=0.03)
    assert math.isfinite(float(torch.autograd.grad(actual.float().sum(), rounded)[0].sum()))


def test_positions_start_again_with_each_sequence():
    positions = PackedLayout([0, 3, 4, 6], CPU).positions()

    assert positions.tolist() == [0, 1, 2, 0, 0, 1]
