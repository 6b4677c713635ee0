"""Joined linear layers give what the layers give, and follow their weights."""

from __future__ import annotations

import copy

import pytest
import torch
from tests.rounding import rounding
from torch import nn

from rlhf_plugin_local.engine.precast import Precast
from rlhf_plugin_local.engine.resident.fused_linears import join_linears
from rlhf_torch.models.layers import compile_layers
from rlhf_torch.packed.packing import PackedLayout


class Attention(nn.Module):
    def __init__(self, *, bias: tuple[bool, bool, bool]) -> None:
        super().__init__()
        for name, out, has in zip(("q_proj", "k_proj", "v_proj"), (8, 4, 4), bias, strict=True):
            setattr(self, name, nn.Linear(8, out, bias=has))


@pytest.mark.parametrize("family", ["qwen3", "llama", "gemma3", "qwen3_moe"])
def test_a_model_with_joined_layers_is_the_model(family, lm_of):
    lm = copy.deepcopy(lm_of(family))
    joined = Precast(lm, join=True)
    tokens = torch.arange(4, 40)
    layout = PackedLayout([0, 36], torch.device("cpu"))

    @torch.no_grad()
    def difference():
        hidden = (part.hidden(tokens, torch.arange(36), layout) for part in (lm, joined.lm))
        own, other = hidden
        return (own - other).abs().max() / own.abs().max()

    assert difference() < 1e-6
    with torch.no_grad():
        for parameter in lm.parameters():
            parameter.mul_(1.01)
    assert difference() > 1e-4
    joined.refresh()
    assert difference() < 1e-6


# How compiled layers are joined has tests in libs/rlhf-torch, of which CI runs each.
@pytest.mark.matrix
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # torch's compiler imports it
def test_compiled_layers_join_too_and_leave_nothing_behind(lm_of):
    lm = lm_of("qwen3")
    joined = Precast(lm, join=True)
    compile_layers(joined.lm.model)
    for length in (32, 40):
        tokens, places = torch.arange(4, 4 + length), torch.arange(length)
        layout = PackedLayout([0, length], torch.device("cpu"))
        with torch.no_grad():
            own, other = (part.hidden(tokens, places, layout) for part in (lm, joined.lm))
        # Two layers, each with sums over 32 channels in six products and two norms, over 128 in one, and over the
        # tokens in the scores' softmax and in the values.
        bound = rounding(2 * (8 * 32 + 128 + 2 * length), float(own.abs().max()))
        torch.testing.assert_close(own, other, atol=bound, rtol=0.0)
        parts = [module for module in joined.lm.modules() if hasattr(module, "joined")]
        assert parts
        assert all(part.joined.products == () for part in parts)


def test_biases_are_joined_too():
    attention = Attention(bias=(True, True, True))
    fused = copy.deepcopy(attention)
    pairs = join_linears(fused, attention, torch.float32)
    x = torch.randn(3, 8)

    assert len(pairs) == 6
    for name in ("q_proj", "k_proj", "v_proj"):
        torch.testing.assert_close(getattr(fused, name)(x), getattr(attention, name)(x))


def test_no_product_outlives_its_pass():
    attention = Attention(bias=(False, False, False))
    fused = copy.deepcopy(attention)
    join_linears(fused, attention, torch.float32)
    for name in ("q_proj", "k_proj", "v_proj"):
        getattr(fused, name)(torch.randn(3, 8))

    assert fused.q_proj.joined.products == ()


def test_layers_that_are_not_alike_stay():
    attention = Attention(bias=(True, False, False))

    assert join_linears(attention, copy.deepcopy(attention), torch.float32) == []
    assert type(attention.q_proj) is nn.Linear
