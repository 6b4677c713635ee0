"""The reward ``regex``: 1 if a regular expression matches the response, else 0.

Each match has a time limit, so that no pattern can hang.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from string import Formatter
from typing import Any

import regex

from rlhf_core import RewardError
from rlhf_core.contracts import RewardRequest, RewardResult, value_at

from .config import RegexConfig
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


def filled(pattern: str, row: Mapping[str, Any]) -> str:
    """Return the pattern with each ``{column}`` replaced by the row's value, or ``{column.entry}`` by that of an object
    in one, escaped; ``{{`` and ``}}`` become braces.

    Raises:
        RewardError: a name in braces is no column or an empty one, or the braces do not pair.
    """
    try:
        return _Filler().vformat(pattern, (), row)
    except KeyError as error:
        raise RewardError(
            f"the pattern names {error.args[0]!r} in braces, which is no column; columns: {', '.join(row) or 'none'}. "
            "A literal brace is written twice",
            code="reward/pattern-of-no-column",
        ) from None
    except (ValueError, IndexError, AttributeError) as error:
        raise RewardError(
            f"the braces of {pattern!r} cannot be filled: {error}. A literal brace is written twice",
            code="reward/braces-of-pattern",
        ) from None


class _Filler(Formatter):
    def get_field(self, field_name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        try:
            value = value_at(kwargs, field_name)
        except KeyError:
            texts = {key: str(value) for key, value in kwargs.items()}
            value, _ = super().get_field(field_name, args, texts)
        if value is None or value != value:  # NaN, as tables have it where a row has no value
            raise RewardError(
                f"column {field_name!r} of this row is empty, and the pattern reads it",
                code="reward/empty-label",
            )
        if isinstance(value, float) and value % 1 == 0:
            # A table has whole numbers as floats where a row of the column has none.
            return regex.escape(f"{value:.0f}") + r"(?:\.0)?", field_name
        return regex.escape(str(value)), field_name
