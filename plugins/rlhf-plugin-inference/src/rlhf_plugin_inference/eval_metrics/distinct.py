"""Diversity: the share of different n-grams of words among the answers to a prompt."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from pydantic import Field

from rlhf_core import Component, Config
from rlhf_core.contracts import EvalEpisodes


class DistinctConfig(Config):
    n: int = Field(2, ge=1, le=10, description="number of words of an n-gram")


def distinct_share(texts: Sequence[str], n: int) -> float | None:
    """Return the number of different n-grams of the texts over the number of all; None if the texts have none.

    Words are what space separates; no n-gram reaches from one text into the next. Equal answers give at most 1 / k of
    k texts.

    Source: Li et al. 2016, arXiv:1510.03055, section 5.1: distinct-1 and distinct-2.
    """
    grams = [
        tuple(words[start : start + n])
        for words in (text.split() for text in texts)
        for start in range(len(words) - n + 1)
    ]
    return len(set(grams)) / len(grams) if grams else None


class Distinct:
    """Metric ``distinct_n``: mean of ``distinct_share`` over the prompts whose answers have an n-gram."""

    def __init__(self, config: DistinctConfig) -> None:
        self.config = config

    def __call__(self, episodes: EvalEpisodes) -> Mapping[str, float]:
        texts: dict[int, list[str]] = defaultdict(list)
        for prompt, text in zip(episodes.prompt.tolist(), episodes.responses, strict=True):
            texts[prompt].append(text)
        shares = [distinct_share(own, self.config.n) for own in texts.values()]
        known = sorted(share for share in shares if share is not None)
        return {f"distinct_{self.config.n}": sum(known) / len(known)} if known else {}


COMPONENT = Component(
    name="distinct",
    factory=Distinct,
    config=DistinctConfig,
    summary="distinct_n: the share of different n-grams among the answers to a prompt",
)
