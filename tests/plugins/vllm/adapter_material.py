"""Factors made by hand, and the model into which they are merged as Transformers runs it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
LINEAR = (*ATTENTION, "gate_proj", "up_proj", "down_proj")
RANK = 3
"""Not one of vLLM's ranks, so that its slots have rows and columns to spare."""
TOLERANCE = 1e-4
"""Nats, float32: measured are 1e-5."""


def factors_of(
    model: nn.Module, seed: int, *, targets: Sequence[str] = LINEAR, rank: int = RANK
) -> dict[str, Tensor]:
    """Return factors large enough to change the most probable tokens."""
    draw = torch.Generator().manual_seed(seed)
    factors = {}
    for name, module in model.named_modules():
        if name.rpartition(".")[2] in targets:
            out, into = module.weight.shape
            factors[f"{name}.lora_A"] = 0.2 * torch.randn(rank, into, generator=draw)
            factors[f"{name}.lora_B"] = 0.2 * torch.randn(out, rank, generator=draw)
    return factors


@contextmanager
def merged(model: nn.Module, factors: Mapping[str, Tensor]) -> Iterator[nn.Module]:
    """Change the model's weights to W + B A in the body."""
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    try:
        for module in {name.rpartition(".")[0] for name in factors}:
            change = factors[f"{module}.lora_B"] @ factors[f"{module}.lora_A"]
            model.get_submodule(module).weight.data += change
        yield model
    finally:
        model.load_state_dict(before)


@torch.no_grad()
def expected_logprobs(model: nn.Module, prompt: Sequence[int], row) -> Tensor:
    """Return (A,) log-probs of the row's tokens in a plain forward pass."""
    tokens = torch.from_numpy(np.concatenate([prompt, row.token_ids]).astype(np.int64))
    logits = model(tokens[None]).logits[0, len(prompt) - 1 : -1]
    return logits.log_softmax(-1).gather(1, tokens[len(prompt) :, None])[:, 0]


def assert_written_by(
    model: nn.Module, factors: Mapping[str, Tensor], prompt: Sequence[int], rows
) -> None:
    """Compare log-probs with those of the merged model."""
    with merged(model, factors):
        for row in rows:
            expected = expected_logprobs(model, prompt, row)
            actual = torch.from_numpy(row.logprobs)
            torch.testing.assert_close(actual, expected, atol=TOLERANCE, rtol=0)
