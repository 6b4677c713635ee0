"""Majority vote: does the answer that a prompt's samples give most often pass?"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence

from pydantic import Field, field_validator

from rlhf_core import Component, Config
from rlhf_core.contracts import EvalEpisodes


class MajorityConfig(Config):
    pattern: str | None = Field(
        None,
        description="regular expression whose last match, or its first group, is the answer; unset: the whole response",
    )

    @field_validator("pattern")
    @classmethod
    def _compiles(cls, pattern: str | None) -> str | None:
        if pattern is not None:
            try:
                re.compile(pattern)
            except re.error as error:
                raise ValueError(f"expected a regular expression: {error}") from error
        return pattern


def answer_of(response: str, pattern: str | None) -> str | None:
    """Return the answer that a response gives, without space around it; None where the pattern finds none."""
    if pattern is None:
        return response.strip()
    found = list(re.finditer(pattern, response))
    if not found:
        return None
    groups = found[-1].groups()
    return (groups[0] or "").strip() if groups else found[-1][0].strip()


def vote(answers: Sequence[str | None], passed: Sequence[bool]) -> float:
    """Return the chance that the most frequent answer of a prompt passes, if ties are drawn by lot.

    An answer passes as often as its samples do. Samples without an answer do not vote; if none has one, the result is
    0. One sample gives pass@1.

    Source: Wang et al. 2022 (self-consistency), arXiv:2203.11171, section 2.
    """
    votes: dict[str, list[bool]] = defaultdict(list)
    for answer, is_right in zip(answers, passed, strict=True):
        if answer is not None:
            votes[answer].append(is_right)
    most = max(map(len, votes.values()), default=0)
    winners = [sum(rights) / most for rights in votes.values() if len(rights) == most]
    # Sorted, so that the sum does not depend on the order of the samples.
    return sum(sorted(winners)) / len(winners) if winners else 0.0


class Majority:
    """Metric ``maj@k``: mean over prompts of ``vote``, with k the smallest number of samples that a prompt has."""

    def __init__(self, config: MajorityConfig) -> None:
        self.config = config

    def __call__(self, episodes: EvalEpisodes) -> Mapping[str, float]:
        of_prompt: dict[int, list[int]] = defaultdict(list)
        for episode, prompt in enumerate(episodes.prompt.tolist()):
            of_prompt[prompt].append(episode)
        answers = [answer_of(text, self.config.pattern) for text in episodes.responses]
        chances = [
            vote([answers[one] for one in own], [bool(episodes.passed[one]) for one in own])
            for own in of_prompt.values()
        ]
        return {f"maj@{min(map(len, of_prompt.values()))}": sum(sorted(chances)) / len(chances)}


COMPONENT = Component(
    name="majority",
    factory=Majority,
    config=MajorityConfig,
    summary="maj@k: the share of prompts whose most frequent answer passes",
)
