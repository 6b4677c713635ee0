"""Weights in 4 bits: what bitsandbytes unpacks is what it packed, or a warning says so."""

from __future__ import annotations

import logging

import bitsandbytes
import pytest
import torch
from torch import nn

from rlhf_plugin_lora.quantized import warn_of_wrong_weights


def layer(width: int, *, nested: bool) -> nn.Module:
    torch.manual_seed(0)
    made = bitsandbytes.nn.Linear4bit(
        width, 16, bias=False, quant_type="nf4", compress_statistics=nested
    )
    made.weight.data = torch.randn(16, width)
    return nn.Sequential(made.to("cpu"))


@pytest.mark.parametrize("nested", [False, True])
def test_right_weights_pass(nested, caplog):
    with caplog.at_level(logging.WARNING):
        warn_of_wrong_weights(layer(128, nested=nested))

    assert caplog.messages == []


def test_wrong_weights_are_named_once_for_each_width(caplog, monkeypatch):
    model = nn.Sequential(layer(128, nested=False), layer(128, nested=False))
    unpack = bitsandbytes.functional.dequantize_4bit
    monkeypatch.setattr(
        bitsandbytes.functional, "dequantize_4bit", lambda *given: unpack(*given).roll(64, 1)
    )

    with caplog.at_level(logging.WARNING):
        warn_of_wrong_weights(model)

    assert len(caplog.messages) == 1
    assert "4 bits with 128 inputs wrongly" in caplog.messages[0]
    assert "multiples of 64" in caplog.messages[0]
