"""A small model with everything that optimizers treat differently."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn


class SmallModel(nn.Module):
    """Named as in Transformers: a tied embedding, a projection with bias and low-rank factors, a norm, stacked experts,
    a value head, and a frozen part."""

    def __init__(self) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(7, 4)
        self.q_proj = nn.Linear(4, 6)
        self.lora_A = nn.Linear(6, 2, bias=False)
        self.lora_B = nn.Linear(2, 4, bias=False)
        self.norm = nn.LayerNorm(4)
        self.experts = nn.Parameter(torch.zeros(3, 4, 4))
        self.value_head = nn.Linear(4, 1)
        self.frozen = nn.Linear(4, 4)
        self.lm_head = nn.Linear(4, 7, bias=False)
        self.lm_head.weight = self.embed_tokens.weight
        self.frozen.requires_grad_(False)
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator))

    def loss(self) -> Tensor:
        """A quadratic with its minimum at 0, steeper for some parameters than for others."""
        parts = [
            (index + 1) * parameter.square().sum()
            for index, parameter in enumerate(self.parameters())
            if parameter.requires_grad
        ]
        return torch.stack(parts).sum()

    def learn(self, optimizer: torch.optim.Optimizer, steps: int) -> list[float]:
        """Take steps and return the loss before each, and at the end."""
        losses = []
        for _ in range(steps):
            optimizer.zero_grad()
            loss = self.loss()
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))
        return [*losses, float(self.loss().detach())]


@pytest.fixture(name="SmallModel", scope="session")
def _small_model() -> type[SmallModel]:
    return SmallModel
