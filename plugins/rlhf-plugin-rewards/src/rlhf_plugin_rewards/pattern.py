"""The reward ``regex``: 1 if a regular expression matches the response, else 0.

Each match has a time limit, so that no pattern can hang.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import regex

from rlhf_core import RewardError
from rlhf_core.contracts import RewardRequest, RewardResult

from .config import RegexConfig
from .filling import filled
from .one_by_one import score_each


class Pattern:
    """Matches with the ``regex`` package."""

    def __init__(self, config: RegexConfig) -> None:
        self._config = config
        # All samples of a group have the same expression, and often many rows of a data set do.
        self._compiled = lru_cache(maxsize=1024)(self._compile)
        if not config.columns:
            self._compiled(config.pattern)

    async def score(self, requests: Sequence[RewardRequest]) -> Sequence[RewardResult | Exception]:
        """Return 0 or 1 per sample."""
        return score_each(requests, self._score)

    def _score(self, request: RewardRequest) -> RewardResult:
        return RewardResult(reward=float(self._matches(request)))

    def _matches(self, request: RewardRequest) -> bool:
        text = self._config.pattern
        if self._config.columns:
            text = filled(text, request.row)
        compiled = self._compiled(text)
        find = compiled.search if self._config.mode == "search" else compiled.fullmatch
        try:
            return find(request.response, timeout=self._config.match_timeout_s) is not None
        except TimeoutError:
            raise RewardError(
                f"the pattern took longer than match_timeout_s = {self._config.match_timeout_s:g} on a response of "
                f"{len(request.response)} characters; write it with less backtracking",
                code="reward/slow-pattern",
            ) from None

    def _compile(self, text: str) -> Any:
        flags = regex.IGNORECASE if self._config.ignore_case else 0
        try:
            return regex.compile(text, flags)
        except regex.error as error:
            raise RewardError(
                f"{text!r} is not a regular expression: {error}", code="reward/malformed-pattern"
            ) from error
