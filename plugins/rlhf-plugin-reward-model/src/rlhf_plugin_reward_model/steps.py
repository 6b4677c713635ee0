"""Scores of the steps of a response by a process reward model, and the one number that a response gets of them.

A step's score is the head's output at the last token of the separator behind it, and its sigmoid is the probability
that the step is good, as ``rlhf prm`` trains it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Literal

import numpy as np
from transformers import PreTrainedTokenizerBase

from rlhf_core import ConfigError, RewardError

from .config import ModelFiles, ModelOptions, StepModelOptions
from .ends import sequence_end
from .scoring import Scorer

Reduction = Literal["min", "mean", "last", "product"]
SEPARATOR = "step_separator"
"""Entry of ``config.json`` with the text behind each step."""


@dataclass(frozen=True, slots=True)
class SteppedText:
    """Prompt and steps as tokens."""

    token_ids: Sequence[int]
    places: Sequence[int]
    """Index of the last token of the separator behind each step."""

    def __len__(self) -> int:
        return len(self.token_ids)


@dataclass(frozen=True, slots=True)
class ResponseStep:
    """A step of a response."""

    text: str
    start: int
    """Index in the response of the step's first character that is not blank."""
    end: int
    """Index in the response behind the step's last character that is not blank."""


class StepScorer:
    """A loaded process reward model. Only one thread may use a scorer at a time.

    Raises:
        ConfigError: the model cannot be loaded, or nothing says what stands behind its steps.
    """

    def __init__(self, options: StepModelOptions) -> None:
        shared = {name: getattr(options, name) for name in ModelFiles.model_fields}
        self._scorer = Scorer(ModelOptions(**shared, score_at="last"))
        config = self._scorer.loaded.model.config
        by_turns = ModelOptions(**shared, score_at="end")
        self._end = sequence_end(by_turns, config, self._scorer.tokenizer)
        separator = options.separator or getattr(config, SEPARATOR, None)
        if not isinstance(separator, str) or not separator:
            raise ConfigError(
                f"process reward model {options.path}: its config.json has no {SEPARATOR}, so nothing says what stands "
                "behind each step. Set separator",
                code="reward-model/no-separator",
            )
        self._separator = separator
        self._split = options.split or separator

    def describe(self) -> str:
        """Return the model's path, device and dtype, for a message."""
        return self._scorer.describe()

    def text(self, prompt: str, response: str) -> SteppedText:
        """Return the tokens of a prompt and of the steps of a response.

        Raises:
            RewardError: the response has no step, or the tokenizer joins a separator with what follows.
        """
        steps = [step.text for step in self.steps(response)]
        if not steps:
            raise RewardError(
                "the response has no step to score; expected one that is not blank",
                code="reward-model/empty",
            )
        return stepped_text(prompt, steps, self._separator, self.tokenizer)

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The model's tokenizer."""
        return self._scorer.loaded.tokenizer

    def steps(self, response: str) -> list[ResponseStep]:
        """Return the steps of a response in order, blank ones left out."""
        return steps_of(self._end.without(response), self._split)

    def probabilities(self, texts: Sequence[SteppedText]) -> list[list[float] | RewardError]:
        """Return the probability that each step is good; for a text that cannot be scored, an error with the reason."""
        found = self._scorer.scores_at(
            [text.token_ids for text in texts], [text.places for text in texts]
        )
        return [
            scores if isinstance(scores, RewardError) else [_sigmoid(score) for score in scores]
            for scores in found
        ]


def steps_of(response: str, split: str) -> list[ResponseStep]:
    """Return the pieces of a response between the texts ``split``, those left out that are blank."""
    steps, start = [], 0
    for text in response.split(split):
        if text.strip():
            blank = len(text) - len(text.lstrip())
            steps.append(ResponseStep(text, start + blank, start + len(text.rstrip())))
        start += len(text) + len(split)
    return steps


def stepped_text(
    prompt: str, steps: Sequence[str], separator: str, tokenizer: PreTrainedTokenizerBase
) -> SteppedText:
    """Return the tokens of prompt and steps, tokenized as one text that has the separator behind each step.

    Raises:
        RewardError: the tokenizer joins a separator with the beginning of the next step.
    """
    pieces = [prompt, *(step + separator for step in steps)]
    ends = list(accumulate(map(len, pieces)))[1:]
    encoded: Any = tokenizer(
        "".join(pieces), add_special_tokens=False, return_offsets_mapping=True, verbose=False
    )
    spans = np.array(encoded["offset_mapping"], dtype=np.int64).reshape(-1, 2)
    # The last token that begins before the end of the separator holds its last character.
    places = np.searchsorted(np.maximum.accumulate(spans[:, 0]), ends, side="left") - 1
    if joined := np.flatnonzero(spans[places, 1] > ends).tolist():
        raise RewardError(
            f"step {joined[0] + 1}: the last token of the separator {separator!r} holds the beginning of the next step "
            "too, so the model has never learned to score there",
            code="reward-model/separator",
        )
    return SteppedText(encoded["input_ids"], places.tolist())


def reduced(probabilities: Sequence[float], how: Reduction) -> float:
    """Return one number of the probabilities that the steps are good, at least one, in [0, 1].

    Source: ``product`` of Lightman et al. 2023, arXiv:2305.20050, which is the probability that all steps are good if
    they are independent; ``min`` and ``last`` of Wang et al. 2024 (Math-Shepherd), arXiv:2312.08935, and Snell et al.
    2024, arXiv:2408.03314.
    """
    match how:
        case "min":
            return min(probabilities)
        case "mean":
            return sum(probabilities) / len(probabilities)
        case "last":
            return probabilities[-1]
    return math.prod(probabilities)


def _sigmoid(score: float) -> float:
    # exp of a number that is not positive never overflows.
    small = math.exp(-abs(score))
    return 1.0 / (1.0 + small) if score >= 0 else small / (1.0 + small)
