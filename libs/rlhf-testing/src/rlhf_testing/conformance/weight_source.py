"""Weights as an engine gets them from another process."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor


class WeightSource:
    """Source of weights that behaves like a training backend in another process: it has no module to share."""

    def __init__(self, state: dict[str, Tensor]) -> None:
        self.state = state

    def module(self) -> None:
        return None

    def buckets(self) -> Iterator[dict[str, Tensor]]:
        for name, tensor in self.state.items():
            yield {name: tensor}
