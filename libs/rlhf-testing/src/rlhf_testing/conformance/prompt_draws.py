"""Prompts without a data set, and runs of draws, for the checks of prompt samplers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlhf_core.contracts.data.sampler import DrawRequest, PromptResult, PromptSampler
from rlhf_core.rng import generator_of


class NumberedPrompts:
    """See ``contracts.PromptSet``: prompts with gaps between their indices, as where rows were skipped."""

    returning = True

    def __init__(self, count: int = 12) -> None:
        self.indices: NDArray[np.int64] = np.arange(count, dtype=np.int64) * 3 // 2 + 2
        self._orders: dict[int, NDArray[np.int64]] = {}

    def __len__(self) -> int:
        return len(self.indices)

    def order(self, epoch: int) -> NDArray[np.int64]:
        # Kept, so that a change in place shows.
        drawn = generator_of(0, "epoch", epoch)
        return self._orders.setdefault(epoch, drawn.permutation(self.indices))

    def row(self, index: int) -> Mapping[str, Any]:
        return {"prompt": f"prompt {index}", "answer": str(index), "level": index % 5}

    def generator(self, *counters: int) -> np.random.Generator:
        return generator_of(0, "prompt sampler", *counters)


class Draws:
    """A sampler at work: draws, and gives each draw a result, which is a function of its number."""

    def __init__(self, sampler: PromptSampler, prompts: NumberedPrompts | None = None) -> None:
        self.sampler = sampler
        self.prompts = prompts or NumberedPrompts()
        sampler.begin(self.prompts)
        self.drawn: list[int] = []
        self.step = 0

    def __call__(self, count: int, in_flight: Sequence[int] = ()) -> list[int]:
        """Return the next ``count`` indices, without results."""
        self.step += 1
        request = DrawRequest(
            count=count, taken=len(self.drawn), step=self.step, in_flight=frozenset(in_flight)
        )
        drawn = list(self.sampler.draw(request))
        self.drawn += drawn
        return drawn

    def results(self, drawn: Sequence[int]) -> list[PromptResult]:
        """Return results of the last draws: of three prompts one always fails, one passes half the time, one always."""
        first = len(self.drawn) - len(drawn)
        return [
            PromptResult(
                index=index,
                epoch=first + number,
                step=self.step,
                rewards=tuple(float(sample < 2 * (index % 3)) for sample in range(4)),
            )
            for number, index in enumerate(drawn)
        ]

    def rounds(self, *counts: int) -> list[int]:
        """Return what is drawn in steps of so many prompts, whose results come at the end of their step."""
        found: list[int] = []
        for count in counts:
            drawn = self(count)
            self.sampler.note(self.results(drawn))
            found += drawn
        return found
