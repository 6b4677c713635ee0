"""The reward ``reward_model``: a reward model's score of each whole sequence."""

from __future__ import annotations

from collections.abc import Sequence

from rlhf_core import RewardError
from rlhf_core.contracts import RewardRequest, RewardResult

from .config import RewardModelConfig
from .inputs import chat_ids, sampled_ids, text_ids
from .scoring import Scorer


class RewardModelReward:
    """Scores sequences with a model. The other sequences of a batch change a sequence's score by rounding only."""

    def __init__(self, config: RewardModelConfig) -> None:
        self._config = config
        self._scorer = Scorer(config)

    async def score(self, requests: Sequence[RewardRequest]) -> Sequence[RewardResult | Exception]:
        """Return a result with one score per request; for a request without a score, an error."""
        results: list[RewardResult | Exception] = [RewardError("not scored")] * len(requests)
        sequences: dict[int, Sequence[int]] = {}
        for index, request in enumerate(requests):
            if request.truncated and self._config.truncated_reward is not None:
                results[index] = RewardResult(reward=self._config.truncated_reward)
                continue
            try:
                sequences[index] = self._tokens(request)
            except RewardError as error:
                results[index] = error
        scores = self._scorer.scores(list(sequences.values()))
        for index, score in zip(sequences, scores, strict=True):
            results[index] = score if isinstance(score, Exception) else RewardResult(reward=score)
        return results

    def _tokens(self, request: RewardRequest) -> Sequence[int]:
        tokenizer = self._scorer.loaded.tokenizer
        match self._config.input:
            case "ids":
                return sampled_ids(request, tokenizer)
            case "text":
                return text_ids(request.prompt + request.response, tokenizer)
        return chat_ids(request, self._config.messages_key, tokenizer)
