"""Trajectories written as text, and an engine that is stepped, for tests of rollouts, learning and the loop."""

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from rlhf_core.contracts import Stop, Trajectory, TrajectoryColumns, Turn, Uid


@pytest.fixture(scope="session")
def stepping() -> ModuleType:
    """The module in ``rollouts/``; test folders are no packages."""
    here = str(Path(__file__).parent / "rollouts")
    pytest.register_assert_rewrite("stepping")
    sys.path.insert(0, here)
    try:
        return importlib.import_module("stepping")
    finally:
        sys.path.remove(here)


@pytest.fixture
def batch_of() -> Callable[..., TrajectoryColumns]:
    """``batch_of({(prompt, sample): "ppAAeAA"})``: small letters are what the policy reads, capitals its actions.

    Each capital run is a turn; a row that ends with ``!`` is truncated. Token ids are the code points of the letters.
    """

    def make(rows: dict[tuple[int, int], str]) -> TrajectoryColumns:
        return TrajectoryColumns.from_trajectories(
            [trajectory(Uid(0, *key), text) for key, text in rows.items()]
        )

    return make


def trajectory(uid: Uid, text: str) -> Trajectory:
    stop = Stop.LENGTH if text.endswith("!") else Stop.EOS
    text = text.rstrip("!")
    mask = np.array([letter.isupper() for letter in text])
    edges = np.flatnonzero(np.diff(mask.astype(int), prepend=0, append=0))
    turns = [
        Turn(start=int(start), end=int(end), stop=stop)
        for start, end in zip(edges[::2], edges[1::2], strict=True)
    ]
    return Trajectory(
        uid=uid,
        token_ids=np.array(list(map(ord, text)), np.int32),
        action_mask=mask,
        rollout_logprobs=np.zeros(mask.sum(), np.float32),
        weight_version=np.zeros(mask.sum(), np.int32),
        turns=tuple(turns),
        reward=0.0,
    )
