"""The sequences of a step: how many they are, and how long."""

from __future__ import annotations

from dataclasses import dataclass

from ..machine import assumptions as assumed


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Sequences of one step."""

    prompts: int
    samples: int
    prompt_tokens: int
    response_tokens: int
    image_tokens: int = 0
    """Number of tokens of a prompt on which features of its image stand."""
    known_lengths: bool
    """Whether every sequence has these lengths, which gives the micro-batches; else the lengths are upper bounds."""
    spread: float = 0.0
    """Standard deviation of the logarithm of the responses' lengths, whose mean is ``response_tokens``; 0: they are
    equal."""
    longest_response: int = 0
    """Number of tokens at which a response of another length is cut."""

    @property
    def sequences(self) -> int:
        return self.prompts * self.samples

    @property
    def length(self) -> int:
        return self.prompt_tokens + self.response_tokens

    @property
    def shares_enough(self) -> bool:
        """Whether sharing prompts saves enough tokens for the backends to compute each prompt once per micro-batch."""
        saved = (self.samples - 1) * self.prompt_tokens
        return saved >= assumed.SHARING_IS_WORTH * self.samples * self.length
