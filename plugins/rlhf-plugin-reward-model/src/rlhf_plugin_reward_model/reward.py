"""The reward ``reward_model``: a reward model's score of each whole sequence."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from rlhf_core import RewardError
from rlhf_core.contracts import RewardRequest, RewardResult
from rlhf_core.media import (
    ImageReader,
    MediaLimits,
    MediaLoader,
    MediaOptions,
    MediaProblem,
    SampleImage,
    image_parts,
)

from .config import RewardModelConfig
from .inputs import ScoredInputs, chat_messages
from .on_held_base import ScorerOnHeldBase
from .scoring import Scorer, TokenIds
from .seeing_scorer import SeeingScorer, SeenTokens

NO_LIMITS = MediaLimits(max_images=sys.maxsize, max_pixels=sys.maxsize, max_bytes=sys.maxsize)
"""Limits of images that a run took in within its own."""

InputT = TypeVar("InputT")


class _Reader(Protocol[InputT]):
    """A model, and the way in which it reads samples."""

    def read(self, request: RewardRequest) -> InputT:
        """Return a sample as the model takes it.

        Raises:
            RewardError: it cannot be read.
        """

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


class SeeingReader:
    """A model that reads images, and the samples that it scores.

    Args:
        vision: name of the component that reads images for the model.
    """

    def __init__(self, config: RewardModelConfig, vision: str) -> None:
        self._config = config
        self._model = SeeingScorer(config, vision)
        tokens = self._model.family.tokens
        self._inputs = ScoredInputs(
            self._model.tokenizer,
            self._model.end,
            tokens.writing,
            template_kwargs=config.chat_template_kwargs,
        )
        loader = MediaLoader(MediaOptions(limits=NO_LIMITS))
        self._images = ImageReader(loader, tokens)

    def read(self, request: RewardRequest) -> SeenTokens:
        """Return a sample's tokens and images.

        Raises:
            RewardError: the model has another tokenizer or chat template than the sample fits.
        """
        folder = request.media[0].folder if request.media else None
        if self._config.input == "ids":
            return SeenTokens(
                uid=request.uid,
                token_ids=self._inputs.sampled(request.token_ids, request.prompt),
                spans=tuple(image.span for image in request.media),
                folder=folder,
            )
        try:
            return self._chat(request, folder)
        except MediaProblem as problem:
            raise RewardError(f"{request.uid}: {problem}", code="image/unusable") from problem

    def scores(self, inputs: Sequence[SeenTokens]) -> list[float | RewardError]:
        """Return each sample's score; for one without a score, an error with the reason."""
        return self._model.scores(inputs)

    def _chat(self, request: RewardRequest, folder: str | None) -> SeenTokens:
        prompt = chat_messages(request, self._config.messages_key)
        shown = _of_prompt(request)
        # Images that the row has beside its prompt fill places in its text; others are parts of the messages already.
        beside: Sequence[Any] = (
            () if any(image_parts(prompt)) else [Path(one.path) for one in shown]
        )
        messages = self._images.messages(prompt, beside)
        answer: Mapping[str, Any] = {"role": "assistant", "content": request.response}
        ids = self._inputs.conversation([*messages, answer])
        whole = self._images.expand(ids, [image.span.image for image in shown])
        return SeenTokens(
            uid=request.uid, token_ids=whole.token_ids, spans=whole.spans, folder=folder
        )


def _of_prompt(request: RewardRequest) -> list[SampleImage]:
    """Return the images of a sample's prompt, which are all that it may have.

    Raises:
        RewardError: later turns have images, for which one answer of the assistant has no place.
    """
    first = request.turns[0].start if request.turns else len(request.token_ids)
    prompt = [image for image in request.media if image.span.start < first]
    if later := len(request.media) - len(prompt):
        raise RewardError(
            f"{request.uid}: {later} images came after the first answer, and with input = chat all that follows the "
            "prompt is one answer as text; set input = ids",
            code="reward-model/images",
        )
    return prompt
