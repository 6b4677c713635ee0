"""Recurrent layers see where sequences begin, and the states behind them are those of each sequence alone."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from transformers.models.qwen3_5 import modeling_qwen3_5 as family

from rlhf_core import PluginError
from rlhf_testing.errors import has_code
from rlhf_testing.tiny import write_tiny_model
from rlhf_torch.models.layers import decoder_layers
from rlhf_torch.models.loading import load_causal_lm
from rlhf_torch.packed.packing import PackedLayout
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


@pytest.mark.parametrize("lengths", [LENGTHS, (5, 5, 5)], ids=["uneven", "even"])
def test_a_convolution_goes_on_from_the_inputs_before_each_sequence(lengths):
    draw = torch.Generator().manual_seed(0)
    inputs = torch.randn(1, 3, sum(lengths), generator=draw)
    weight = torch.randn(3, 4, generator=draw)
    tails = torch.randn(len(lengths), 3, 3, generator=draw)
    convolution = Convolution(lambda rows: family.causal_conv1d_fn(rows, weight), 4)
    starts = [0, *torch.tensor(lengths).cumsum(0).tolist()]

    outputs = PackedSequences(starts, CPU).convolve(0, convolution, inputs, tails)

    for tail, (begin, end) in zip(tails, pairwise(starts), strict=True):
        whole = torch.cat([tail, inputs[0, :, begin:end]], dim=1)
        for token in range(end - begin):
            expected = (weight * whole[:, token : token + 4]).sum(1)
            torch.testing.assert_close(outputs[0, :, begin + token], expected, atol=1e-6, rtol=1e-6)


def test_the_delta_rule_goes_on_from_the_state_before_each_sequence(parts):
    """Sequences in two parts, the second from the state behind the first, are whole sequences."""
    first = torch.tensor([64, 2, 0, 7])
    whole = PackedSequences(offsets(), CPU).final_states(RULE, parts)
    cuts = [begin + own for begin, own in zip(offsets(), first.tolist(), strict=False)]
    behind = [i for a, b in zip(cuts, offsets()[1:], strict=True) for i in range(a, b)]
    left = torch.tensor(LENGTHS) - first
    starts = torch.cat([torch.zeros(1, dtype=torch.int64), left.cumsum(0)])

    before = PackedSequences(offsets(), CPU, first).final_states(RULE, parts).states
    rest = PackedSequences(starts, CPU).final_states(
        RULE, parts.map(lambda part: part[:, behind]), before
    )

    torch.testing.assert_close(rest.states, whole.states, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(rest.outputs, whole.outputs[:, behind], atol=1e-5, rtol=1e-5)


def test_a_cpu_computes_what_a_package_of_gpu_kernels_has_replaced():
    def plain(rows):
        return rows + 1

    def kernel(rows):
        raise ValueError("Pointer argument cannot be accessed (cpu tensor?)")

    kernel.__wrapped__ = plain  # as Transformers wraps its own function

    assert float(_by_device(kernel)(torch.zeros(()))) == 1.0


def test_a_layout_that_cuts_sequences_is_refused():
    class Sliced: ...

    with pytest.raises(
        PluginError, match=r"Sliced.*sequence_parallel to 1", check=has_code("model/carries-state")
    ):
        sequences_of(Sliced())


def test_a_layout_has_its_sequences_before_a_layer_asks_for_them(tmp_path):
    """A compiled layer that made them would change the layout while torch traces it."""
    lm = load_causal_lm(str(write_tiny_model(tmp_path, "qwen3_5")), dtype="float32")
    layout = PackedLayout([0, 3, 5], CPU)
    there = []
    decoder_layers(lm.model)[0].register_forward_pre_hook(
        lambda *_: there.append("sequences" in vars(layout)), prepend=True
    )

    lm.hidden(torch.tensor([5, 6, 7, 8, 9]), layout.positions(), layout)

    assert there == [True]
