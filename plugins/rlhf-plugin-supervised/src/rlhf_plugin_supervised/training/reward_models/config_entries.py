"""Entries of ``config.json`` that a trained model is exported with, for those who read its scores."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlhf_core.outside.json_reader import read_object
from rlhf_trainer.runs import Exportable

SMALLEST_STD = 1e-8
"""Smallest standard deviation that is written, since scores are divided by it."""


class WithEntries:
    """See ``rlhf_trainer.runs.Exportable``: a model whose exported ``config.json`` has further entries.

    Args:
        entries: function that returns the entries for the present weights, as JSON types.
    """

    def __init__(
        self, model: Exportable, entries: Callable[[], Awaitable[Mapping[str, Any]]]
    ) -> None:
        self._model = model
        self._entries = entries

    async def export(self, folder: Path, *, ema: bool = False) -> None:
        """Write the model's folder.

        Args:
            ema: has to be False: the entries are those of the weights themselves.
        """
        assert not ema
        await self._model.export(folder)
        entries = await self._entries()
        # Under an adapter there is a second one, in the adapter's own folder.
        for path in folder.rglob("config.json"):
            write_entries(path, entries)


def statistics_of(scores: NDArray[np.float32]) -> dict[str, float]:
    """Return ``mean`` and ``std``, the sample standard deviation, of at least 2 scores (B,).

    With these entries the reward ``reward_model``, and OpenRLHF, turn scores into ``(score - mean) / std``.
    """
    std = float(scores.std(dtype=np.float64, ddof=1))
    return {"mean": float(scores.mean(dtype=np.float64)), "std": max(std, SMALLEST_STD)}


def write_entries(path: Path, entries: Mapping[str, Any]) -> None:
    """Add the entries to a model's configuration."""
    config = read_object(path, "a model's config.json") | dict(entries)
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")
