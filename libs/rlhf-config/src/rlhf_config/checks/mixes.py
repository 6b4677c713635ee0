"""Rules about mixes of sets that every command has which trains on several."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from rlhf_core.errors import ConfigError

from ..problems import Labels


def mix_problems(
    probabilities: Sequence[float], train: Sequence[str], labels: Labels
) -> Iterator[ConfigError]:
    """Yield what is wrong with the shares ``data.probabilities`` of the sets ``data.train``."""
    if probabilities and len(probabilities) != len(train):
        yield ConfigError(
            f"{labels('data.probabilities')} has {len(probabilities)} shares for {len(train)} sets "
            f"in {labels('data.train')}; expected one share for each set",
            code="config/number-of-shares",
        )
    if probabilities and not math.isclose(sum(probabilities), 1.0, abs_tol=1e-3):
        yield ConfigError(
            f"{labels('data.probabilities')}: expected shares that add up to 1, got {sum(probabilities):g}",
            code="config/sum-of-shares",
        )
