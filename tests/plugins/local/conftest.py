"""Tiny models of every family, written once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from rlhf_core.testing.tiny import FAMILIES, write_tiny_model


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("models")
    return {family: write_tiny_model(root / family, family) for family in FAMILIES}


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Other processes share the cores, and small tensors gain nothing from more."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
