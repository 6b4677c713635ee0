"""Samples with images as a reward model takes them: with the tokens of the policy, or of its own chat template."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlhf_core import RewardError
from rlhf_core.contracts import RewardRequest
from rlhf_core.media import (
    ImageReader,
    MediaDesk,
    MediaLimits,
    MediaOptions,
    MediaProblem,
    SampleImage,
    image_parts,
)

from .config import RewardModelConfig
from .inputs import ScoredInputs, chat_messages
from .seeing_scorer import SeeingScorer, SeenTokens

NO_LIMITS = MediaLimits(max_images=sys.maxsize, max_pixels=sys.maxsize, max_bytes=sys.maxsize)
"""Limits of images that a run took in within its own."""


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
        desk = MediaDesk(MediaOptions(limits=NO_LIMITS))
        self._images = ImageReader(desk, tokens)

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
