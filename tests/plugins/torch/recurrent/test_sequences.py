"""Recurrent layers see where sequences begin, and the states behind them are those of each sequence alone."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from transformers.models.qwen3_5 import modeling_qwen3_5 as family

from rlhf_core import PluginError
from rlhf_torch.recurrent.packed import PackedSequences
from rlhf_torch.recurrent.sequences import (
    Convolution,
    DeltaRule,
    Parts,
    _by_device,
    sequences_of,
)

CPU = torch.device("cpu")
LENGTHS = (70, 3, 1, 20)
HEADS, KEY, VALUE = 2, 4, 6


@pytest.fixture
def parts() -> Parts:
    draw = torch.Generator().manual_seed(0)
    tokens = sum(LENGTHS)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(1, tokens, *shape, generator=draw)

    decay = -torch.rand(1, tokens, HEADS, generator=draw)
    beta = torch.rand(1, tokens, HEADS, generator=draw)
    return Parts(normal(HEADS, KEY), normal(HEADS, KEY), normal(HEADS, VALUE), decay, beta)


def offsets() -> list[int]:
    return [0, *torch.tensor(LENGTHS).cumsum(0).tolist()]


def slow_rule(query, key, value, g, beta):
    """The delta rule token by token, as the paper writes it, for one head: o_t = S_t q_t / sqrt(K)."""
    state = torch.zeros(VALUE, KEY)
    outputs = []
    for q, k, v, decay, strength in zip(query, key, value, g, beta, strict=True):
        state = decay.exp() * state @ (torch.eye(KEY) - strength * torch.outer(k, k))
        state = state + strength * torch.outer(v, k)
        outputs.append(state @ q / KEY**0.5)
    return torch.stack(outputs), state


RULE = DeltaRule(family.torch_chunk_gated_delta_rule, family.torch_recurrent_gated_delta_rule)


def test_each_sequence_starts_from_an_empty_state(parts):
    outputs = PackedSequences(offsets(), CPU).delta_rule(0, RULE, parts)

    for begin, end in pairwise(offsets()):
        for head in range(HEADS):
            own = [part[0, begin:end, head] for part in parts]
            expected, _ = slow_rule(*own)
            torch.testing.assert_close(outputs[0, begin:end, head], expected, atol=1e-5, rtol=1e-5)


def test_padding_behind_a_sequence_leaves_its_state_as_it_is(parts):
    real = torch.tensor([65, 1, 1, 20])

    computed = PackedSequences(offsets(), CPU, real).final_states(RULE, parts)

    for number, (begin, own) in enumerate(zip(offsets(), real.tolist(), strict=False)):
        for head in range(HEADS):
            _, state = slow_rule(*(part[0, begin : begin + own, head] for part in parts))
            torch.testing.assert_close(computed.states[number, head], state.T, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("lengths", [LENGTHS, (5, 5, 5)], ids=["uneven", "even"])
def test_a_convolution_reads_no_other_sequence(lengths):
    draw = torch.Generator().manual_seed(0)
    inputs = torch.randn(1, 3, sum(lengths), generator=draw)
    weight = torch.randn(3, 4, generator=draw)
    convolution = Convolution(lambda rows: family.causal_conv1d_fn(rows, weight), 4)
    starts = [0, *torch.tensor(lengths).cumsum(0).tolist()]

    outputs = PackedSequences(starts, CPU).convolve(0, convolution, inputs)

    for begin, end in pairwise(starts):
        for token in range(begin, end):
            expected = sum(
                weight[:, 3 - back] * inputs[0, :, token - back]
                for back in range(4)
                if token - back >= begin
            )
            torch.testing.assert_close(outputs[0, :, token], expected, atol=1e-6, rtol=1e-6)


def test_a_cpu_computes_what_a_package_of_gpu_kernels_has_replaced():
    def plain(rows):
        return rows + 1

    def kernel(rows):
        raise ValueError("Pointer argument cannot be accessed (cpu tensor?)")

    kernel.__wrapped__ = plain  # as Transformers wraps its own function

    assert float(_by_device(kernel)(torch.zeros(()))) == 1.0


def test_a_layout_that_cuts_sequences_is_refused():
    class Sliced: ...

    with pytest.raises(PluginError, match=r"Sliced .* sequence_parallel to 1"):
        sequences_of(Sliced())
