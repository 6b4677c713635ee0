"""The reward ``reward_model``: a reward model's score of each whole sequence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar

from rlhf_core import RewardError
from rlhf_core.contracts import RewardRequest, RewardResult

from .config import RewardModelConfig
from .inputs import ScoredInputs
from .on_held_base import ScorerOnHeldBase
from .scoring import Scorer, TokenIds
from .seeing import SeeingReader
from .seeing_scorer import SeenTokens

InputT = TypeVar("InputT")


class _Reader(Protocol[InputT]):
    """A model, and the way in which it reads samples."""

    def read(self, request: RewardRequest) -> InputT:
        """Return a sample as the model takes it.

        Raises:
            RewardError: it cannot be read.
        """
        ...

    def scores(self, inputs: Sequence[InputT]) -> list[float | RewardError]: ...


class RewardModelReward(Generic[InputT]):
    """Scores sequences with a model. The other sequences of a batch change a sequence's score by rounding only."""

    def __init__(self, config: RewardModelConfig, model: _Reader[InputT]) -> None:
        self._config = config
        self._model = model

    async def score(self, requests: Sequence[RewardRequest]) -> Sequence[RewardResult | Exception]:
        """Return a result with one score per request; for a request without a score, an error."""
        results: list[RewardResult | Exception] = [
            RewardError("not scored", code="reward-model/not-scored")
        ] * len(requests)
        inputs: dict[int, InputT] = {}
        for index, request in enumerate(requests):
            if request.truncated and self._config.truncated_reward is not None:
                results[index] = RewardResult(reward=self._config.truncated_reward)
                continue
            try:
                inputs[index] = self._model.read(request)
            except RewardError as error:
                results[index] = error
        scores = self._model.scores(list(inputs.values()))
        for index, score in zip(inputs, scores, strict=True):
            results[index] = score if isinstance(score, Exception) else RewardResult(reward=score)
        return results


class TextReader:
    """A model that reads text alone."""

    def __init__(self, config: RewardModelConfig) -> None:
        self._config = config
        is_own = config.base == "own"
        self._scorer = Scorer(config) if is_own else ScorerOnHeldBase(config)
        self._inputs = ScoredInputs(
            self._scorer.tokenizer, self._scorer.end, template_kwargs=config.chat_template_kwargs
        )

    def read(self, request: RewardRequest) -> TokenIds:
        match self._config.input:
            case "ids":
                return self._inputs.sampled(request.token_ids, request.prompt)
            case "text":
                return self._inputs.text(request.prompt + request.response)
        return self._inputs.chat(request, self._config.messages_key)

    def scores(self, inputs: Sequence[TokenIds]) -> list[float | RewardError]:
        return self._scorer.scores(inputs)


def make_reward(
    config: RewardModelConfig,
) -> RewardModelReward[TokenIds] | RewardModelReward[SeenTokens]:
    """Return the reward that the options describe, with its model loaded.

    Raises:
        ConfigError: the model cannot be used.
    """
    if config.vision is None:
        return RewardModelReward(config, TextReader(config))
    return RewardModelReward(config, SeeingReader(config, config.vision))
