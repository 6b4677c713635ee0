"""The reward ``math``: 1 if the response's final answer is mathematically equal to the row's answer, else 0.

math-verify takes answers from ``\\boxed{}``, from LaTeX between dollars, or from the last number or expression of the
text. Its time limits for each parse and comparison work in a process's main thread only, in which a reward's own
process computes. In other threads the batch's ``timeout_s`` is the only limit.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from math_verify import parse, verify

from rlhf_core import RewardError
from rlhf_core.contracts import RewardRequest, RewardResult

from .config import MathConfig
from .labels import label_of
from .one_by_one import score_each


class MathEquivalence:
    """Compares with SymPy. A comparison that takes too long counts as not equal."""

    def __init__(self, config: MathConfig) -> None:
        self._config = config
        # The samples of a group share their label.
        self._gold = lru_cache(maxsize=4096)(self._parse_label)

    async def score(self, requests: Sequence[RewardRequest]) -> Sequence[RewardResult | Exception]:
        """Return 0 or 1 per sample, and the metric ``extracted``: 1 if the response contains an answer, else 0."""
        return score_each(requests, self._score)

    def _score(self, request: RewardRequest) -> RewardResult:
        gold = self._gold(str(label_of(request, self._config.label_key)))
        answer = parse(request.response, parsing_timeout=self._limit())
        right = bool(answer) and verify(list(gold), answer, timeout_seconds=self._limit())
        return RewardResult(reward=float(right), metrics={"extracted": float(bool(answer))})

    def _parse_label(self, label: str) -> tuple[Any, ...]:
        # Plain text such as "1,234" comes first, then text that is valid as LaTeX only, such as "(1,2)" or "x".
        for text in (label, f"${label}$"):
            if parsed := parse(text, parsing_timeout=self._limit()):
                return tuple(parsed)
        raise RewardError(
            f"the label {label!r} in column {self._config.label_key!r} is no mathematical expression; "
            "use exact_match for text"
        )

    def _limit(self) -> int | None:
        in_main = threading.current_thread() is threading.main_thread()
        return self._config.step_timeout_s if in_main else None
