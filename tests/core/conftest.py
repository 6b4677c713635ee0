"""Trajectories written as text, and configurations of components that are none."""

import sys
from collections.abc import Callable
from importlib.metadata import EntryPoint

import numpy as np
import pytest
from tests.core import sample_plugin

from rlhf_config import Layer, parse_flags, resolve
from rlhf_config.resolved import Resolved
from rlhf_core.contracts import Stop, Trajectory, TrajectoryColumns, Turn, Uid
from rlhf_core.plugins import GROUP, Candidate, Plugins, empty, register


@pytest.fixture
def plugins(monkeypatch: pytest.MonkeyPatch) -> Plugins:
    """Only the components of ``sample_plugin``."""
    monkeypatch.setitem(sys.modules, "sample_plugin", sample_plugin.module())
    loaded = empty()
    register(loaded, Candidate("sample", EntryPoint("sample", "sample_plugin", GROUP), None))
    return loaded


@pytest.fixture
def resolved(plugins: Plugins) -> Callable[..., Resolved]:
    """Resolve flags on top of the defaults and what makes a run complete."""

    def run(*words: str, files: tuple[Layer, ...] = (), enough: bool = True) -> Resolved:
        typed = [*(sample_plugin.ENOUGH if enough else ()), *words]
        layers = [Layer.of(sample_plugin.DEFAULTS, "defaults"), *files, parse_flags(typed)]
        return resolve(layers, plugins)

    return run


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
