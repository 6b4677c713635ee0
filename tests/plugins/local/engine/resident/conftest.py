"""Engines of this folder's tests decode in bursts where a test says nothing else."""

from __future__ import annotations

import pytest


@pytest.fixture
def decode() -> str:
    return "resident"
