"""The order of a run without a sampler: each prompt once an epoch, each epoch in an order of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlhf_core.contracts.data.sampler import DrawRequest, PromptResult, PromptSet


class EpochOrder:
    """See ``contracts.PromptSampler``. The n-th draw is a function of n alone, so there is no state."""

    def begin(self, prompts: PromptSet) -> None:
        self._prompts = prompts
        self._order: tuple[int, NDArray[np.int64]] | None = None

    def draw(self, request: DrawRequest) -> Sequence[int]:
        return [self._at(request.taken + number) for number in range(request.count)]

    def note(self, results: Sequence[PromptResult]) -> None:
        pass

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        pass

    def _at(self, number: int) -> int:
        epoch, position = divmod(number, len(self._prompts))
        if self._order is None or self._order[0] != epoch:
            self._order = epoch, self._prompts.order(epoch)
        return int(self._order[1][position])
