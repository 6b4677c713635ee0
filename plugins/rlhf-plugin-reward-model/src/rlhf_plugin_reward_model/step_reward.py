"""The reward ``process_reward_model``: the probabilities that a response's steps are good, as one number or each at its
step's end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rlhf_core import RewardError
from rlhf_core.contracts import RewardRequest, RewardResult

from .config import StepRewardConfig
from .placing import last_actions, load_policy_tokenizer
from .steps import SteppedText, StepScorer, reduced


@dataclass(frozen=True, slots=True)
class _Sample:
    """One response, as the model is asked about it."""

    text: SteppedText
    places: Sequence[int | None]
    """Index of each step's last action; empty if the response gets one number."""


class StepReward:
    """Scores the steps of each response with a process reward model."""

    def __init__(self, config: StepRewardConfig) -> None:
        self._config = config
        self._scorer = StepScorer(config)
        self._policy_tokenizer = self._scorer.tokenizer
        if config.policy_tokenizer is not None:
            self._policy_tokenizer = load_policy_tokenizer(
                config.policy_tokenizer, trust_remote_code=config.trust_remote_code
            )

    async def score(self, requests: Sequence[RewardRequest]) -> Sequence[RewardResult | Exception]:
        """Return a result per request, with the number of its steps and their worst and mean probability as metrics;
        for a request without a score, an error."""
        results: list[RewardResult | Exception] = [
            RewardError("not scored", code="reward-model/not-scored")
        ] * len(requests)
        samples: dict[int, _Sample] = {}
        for index, request in enumerate(requests):
            if request.truncated and self._config.truncated_reward is not None:
                results[index] = RewardResult(reward=self._config.truncated_reward)
                continue
            try:
                samples[index] = self._sample(request)
            except RewardError as error:
                results[index] = error
        found = self._scorer.probabilities([sample.text for sample in samples.values()])
        for (index, sample), steps in zip(samples.items(), found, strict=True):
            results[index] = (
                steps if isinstance(steps, Exception) else self._result(steps, sample.places)
            )
        return results

    def _sample(self, request: RewardRequest) -> _Sample:
        text = self._scorer.text(request.prompt, request.response)
        if self._config.reduce != "none":
            return _Sample(text, ())
        steps = self._scorer.steps(request.response)
        return _Sample(text, last_actions(request, steps, self._policy_tokenizer))

    def _result(self, probabilities: Sequence[float], places: Sequence[int | None]) -> RewardResult:
        metrics = {
            "steps": float(len(probabilities)),
            "min": min(probabilities),
            "mean": sum(probabilities) / len(probabilities),
        }
        if self._config.reduce != "none":
            reward = reduced(probabilities, self._config.reduce)
            return RewardResult(reward=reward, metrics=metrics)
        # What the environment wrote is no action, and earns nothing.
        placed = [
            (place, probability)
            for place, probability in zip(places, probabilities, strict=True)
            if place is not None
        ]
        return RewardResult.at_steps(placed, metrics)
