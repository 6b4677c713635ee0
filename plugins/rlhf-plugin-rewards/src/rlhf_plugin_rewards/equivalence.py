"""The reward ``math``: 1 if the response's final answer is mathematically equal to the row's answer, else 0.

The row's answer is read whole, and so is the last ``\\boxed{}`` of the response. From a response without a box
math-verify takes the LaTeX between dollars, or the last number or expression. math-verify's own time limits are those
of a clock, which a busy machine spends on others, and nothing but a log line tells of them; here each parse and
comparison has a limit in CPU time, and a metric.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any, TypeVar

from math_verify import parse, verify

from rlhf_core import RewardError
from rlhf_core.contracts import RewardRequest, RewardResult

from .boxes import last_boxed
from .config import MathConfig
from .cpu_limit import CpuTimeExceededError, under_cpu_limit
from .labels import final_answer, math_label
from .one_by_one import score_each

T = TypeVar("T")

# It warns that its limits are off. They are: see above.
logging.getLogger("math_verify").setLevel(logging.ERROR)


class MathEquivalence:
    """Compares with SymPy. A response that takes too long has no result: it is not equal, or an error."""

    def __init__(self, config: MathConfig) -> None:
        self._config = config
        # The samples of a group share their label.
        self._gold = lru_cache(maxsize=4096)(self._parse_label)

    async def score(self, requests: Sequence[RewardRequest]) -> Sequence[RewardResult | Exception]:
        """Return 0 or 1 per sample, and two metrics, each 0 or 1: ``extracted``, the response contains an answer, and
        ``timed_out``, reading or comparing it took longer than ``step_timeout_s``. With ``on_timeout = "error"`` such a
        sample has a ``RewardError`` in place of a result."""
        return score_each(requests, self._score)

    def _score(self, request: RewardRequest) -> RewardResult:
        gold = self._gold(math_label(request.row, self._config.label_key))
        answer: list[Any] = []
        is_right, timed_out = False, False
        try:
            answer = self._limited(partial(self._answer, request.response))
            compare = partial(verify, list(gold), answer, timeout_seconds=None)
            is_right = bool(answer) and self._limited(compare)
        except CpuTimeExceededError:
            if self._config.on_timeout == "error":
                raise RewardError(
                    "the response took longer to compare than step_timeout_s = "
                    f"{self._config.step_timeout_s:g} seconds of CPU time; raise it, or set on_timeout = zero to count "
                    "such a response as not equal",
                    code="reward/slow-response",
                ) from None
            timed_out = True
        return RewardResult(
            reward=float(is_right),
            metrics={"extracted": float(bool(answer)), "timed_out": float(timed_out)},
        )

    def _answer(self, response: str) -> list[Any]:
        """Return the forms in which math-verify reads the response's answer; none if there is no answer."""
        if self._config.answer_after is not None:
            _, found, response = response.rpartition(self._config.answer_after)
            if not found:
                return []
        boxed = last_boxed(response)
        if boxed is None and self._config.only_boxed:
            return []
        forms: list[Any] = parse(boxed or response, parsing_timeout=None)
        return forms

    def _parse_label(self, label: str) -> tuple[Any, ...]:
        key = self._config.label_key
        column = f"the label {label[:200]!r} in column {key!r}"
        try:
            latex = self._limited(partial(final_answer, label, key))
            parsed = self._limited(partial(_parse_boxed, latex))
            compare = partial(verify, parsed[:1], parsed[:1], timeout_seconds=None)
            is_comparable = bool(parsed) and self._limited(compare)
        except CpuTimeExceededError:
            raise RewardError(
                f"{column} took longer to read than step_timeout_s = {self._config.step_timeout_s:g} seconds of CPU "
                "time; raise it, or write the label in a simpler form",
                code="reward/slow-label",
            ) from None
        if not is_comparable:
            raise RewardError(
                f"{column} is no mathematical expression; use exact_match for text",
                code="reward/no-expression",
            )
        return tuple(parsed)

    def _limited(self, call: Callable[[], T]) -> T:
        """Return what the call returns, under the limit where there can be one."""
        if threading.current_thread() is not threading.main_thread():
            return call()
        return under_cpu_limit(self._config.step_timeout_s, call)


def _parse_boxed(latex: str) -> list[Any]:
    boxed = latex if r"\boxed" in latex else rf"$\boxed{{{latex}}}$"
    parsed: list[Any] = parse(boxed, parsing_timeout=None)
    return parsed
