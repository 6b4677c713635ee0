"""A training backend and an engine without a model, which a process of any runtime can build from this file.

The backend's answers tell which role was asked and about which batch. It and the check that started the runtime speak
by files in a folder, whatever processes the runtime puts between them. Imports are absolute, since a process loads this
file by its path.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from rlhf_core import Config, DataError
from rlhf_core.contracts import EngineSpec, RoleSpec, TrajectoryColumns

GO = "go"
"""File for which ``values`` waits."""
POLL_S = 0.02


class AnsweringConfig(Config):
    """Options of the backend: whom it obeys, and what it breaks."""

    folder: str = Field(".", description="folder of the files by which it speaks")
    broken: str = Field("", description="role that cannot be set up; empty: none")
    patience_s: float = Field(60.0, gt=0, description="seconds that values waits to be let go")


class AnsweringBackend:
    """Answers with the tokens that it was asked about, and a number that belongs to its role."""

    def __init__(self, config: AnsweringConfig) -> None:
        self._config = config
        self._folder = Path(config.folder)
        self._role = ""

    def setup(self, spec: RoleSpec, plugins: Any) -> None:
        """Write down the process of the role, or refuse to be the broken one."""
        self._role = spec.role
        self._say(f"pid-{os.getpid()}")
        if spec.role == self._config.broken:
            raise DataError(f"the {spec.role} cannot be set up today")

    def checksum(self) -> str:
        """Return the role."""
        return self._role

    def logprobs(self, batch: TrajectoryColumns) -> NDArray[np.float32]:
        """Return ``answer``."""
        return answer(self._role, batch)

    def base_logprobs(self, batch: TrajectoryColumns) -> NDArray[np.float32]:
        """Return ``answer``, as without an adapter."""
        return answer(self._role, batch)

    def values(self, batch: TrajectoryColumns) -> NDArray[np.float32]:
        """Say that the call has begun, wait to be let go, and return the negative answer.

        Raises:
            TimeoutError: nobody let it go.
        """
        self._say("began")
        give_up = time.monotonic() + self._config.patience_s
        while not (self._folder / GO).exists():
            if time.monotonic() > give_up:
                raise TimeoutError("the program that asked did nothing else meanwhile")
            time.sleep(POLL_S)
        return -answer(self._role, batch)

    def train_step(self, batch: Any, plan: Any) -> None:
        """Train nothing."""

    def save(self, folder: Path) -> None:
        """Raise an error of the core."""
        raise DataError(f"the {self._role} saves nothing today")

    def load(self, folder: Path) -> None:
        """Raise an error of Python."""
        raise ZeroDivisionError(f"the {self._role} divides by zero")

    def offload(self, *, weights: bool = True, state: bool = True) -> None:
        """Move nothing."""

    def reload(self, *, state: bool = True) -> None:
        """Move nothing."""

    def close(self) -> None:
        """Write down the call."""
        with (self._folder / f"{self._role}.closed").open("a") as file:
            file.write("closed\n")

    def _say(self, what: str) -> None:
        (self._folder / f"{self._role}.{what}").touch()


class SilentEngine:
    """Generates nothing, in a process of its own for all that roles know."""

    shares_weights = False

    async def generate(self, request: Any) -> list[Any]:
        """Return nothing."""
        return []

    async def start(self, spec: EngineSpec, source: Any) -> None:
        """Start nothing."""

    async def close(self) -> None:
        """Close nothing."""


def answer(role: str, batch: TrajectoryColumns) -> NDArray[np.float32]:
    """Return (sum of A,) the action tokens, each with 1000 times the length of the role's name."""
    tokens = batch.token_ids[batch.action_mask].astype(np.float32)
    return tokens + np.float32(1000 * len(role))
