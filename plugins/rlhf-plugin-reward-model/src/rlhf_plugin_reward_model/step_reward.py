"""The reward ``process_reward_model``: one number of the probabilities that the steps of a response are good."""

from __future__ import annotations

from collections.abc import Sequence

from rlhf_core import RewardError
from rlhf_core.contracts import RewardRequest, RewardResult

from .config import StepRewardConfig
from .steps import SteppedText, StepScorer, reduced


class StepReward:
    """Scores the steps of each response with a process reward model."""

    def __init__(self, config: StepRewardConfig) -> None:
        self._config = config
        self._scorer = StepScorer(config)

    async def score(self, requests: Sequence[RewardRequest]) -> Sequence[RewardResult | Exception]:
        """Return a result per request, with the number of its steps and their worst and mean probability as metrics;
        for a request without a score, an error."""
        results: list[RewardResult | Exception] = [RewardError("not scored")] * len(requests)
        texts: dict[int, SteppedText] = {}
        for index, request in enumerate(requests):
            if request.truncated and self._config.truncated_reward is not None:
                results[index] = RewardResult(reward=self._config.truncated_reward)
                continue
            try:
                texts[index] = self._scorer.text(request.prompt, request.response)
            except RewardError as error:
                results[index] = error
        found = self._scorer.probabilities(list(texts.values()))
        for index, steps in zip(texts, found, strict=True):
            results[index] = steps if isinstance(steps, Exception) else self._result(steps)
        return results

    def _result(self, probabilities: Sequence[float]) -> RewardResult:
        return RewardResult(
            reward=reduced(probabilities, self._config.reduce),
            metrics={
                "steps": float(len(probabilities)),
                "min": min(probabilities),
                "mean": sum(probabilities) / len(probabilities),
            },
        )
