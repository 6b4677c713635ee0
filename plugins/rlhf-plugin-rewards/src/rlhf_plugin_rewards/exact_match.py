"""The reward ``exact_match``: 1 if the response, or an answer extracted from it, equals the row's answer, else 0."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import regex

from rlhf_core.contracts import RewardRequest, RewardResult

from .config import ExactMatchConfig
from .labels import accepted_texts
from .one_by_one import score_each


class ExactMatch:
    """Compares text. A label that is a list accepts each of its entries."""

    def __init__(self, config: ExactMatchConfig) -> None:
        self._config = config
        self._extract = regex.compile(config.extract) if config.extract is not None else None

    async def score(self, requests: Sequence[RewardRequest]) -> Sequence[RewardResult | Exception]:
        """Return 0 or 1 per sample; with ``extract`` also the metric ``extracted``: 1 if it matched, else 0."""
        return score_each(requests, self._score)

    def _score(self, request: RewardRequest) -> RewardResult:
        texts = accepted_texts(request.row, self._config.label_key)
        answer = self._answer(request.response)
        right = answer is not None and self._normal(answer) in map(self._normal, texts)
        metrics = {} if self._extract is None else {"extracted": float(answer is not None)}
        return RewardResult(reward=float(right), metrics=metrics)

    def _answer(self, response: str) -> str | None:
        if self._extract is None:
            return response
        matches = self._extract.finditer(response, timeout=self._config.match_timeout_s)
        last = deque(matches, maxlen=1)
        if not last:
            return None
        text: str | None = last[0][1] if self._extract.groups else last[0][0]
        return text

    def _normal(self, text: str) -> str:
        if self._config.strip:
            text = text.strip()
        return text.casefold() if self._config.lowercase else text
