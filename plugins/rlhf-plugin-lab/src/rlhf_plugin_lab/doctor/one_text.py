"""One and the same answer to nearly all prompts."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from itertools import groupby

from .record import Texts

SAME_TEXT = 0.95
"""Share of prompts with one and the same answer, or of groups whose samples are all the same."""
RARE = 0.5
"""Largest share of the first prompts that had an answer which all have now: what a model says anyway is no find."""
FIRST = 10
"""Fewest first prompts, of as few steps as have so many: a text that is paid whatever was asked may be that of four of
five answers within ten steps."""
PROMPTS = 20
"""Fewest prompts, or groups of several samples, that are compared."""
_SHOWN = 60


@dataclass(frozen=True, slots=True)
class SameAnswer:
    """An answer that nearly all of the last prompts got."""

    answer: str
    prompts: int
    share: float
    before: float
    """Share of the first prompts that got it."""

    def shown(self) -> str:
        """Return the answer in quotes, with no character that a terminal obeys."""
        return json.dumps(self.answer[:_SHOWN])

    def evidence(self) -> dict[str, float]:
        """Return the numbers by what they are."""
        return {
            "prompts": self.prompts,
            "share with the same answer": self.share,
            "at first": self.before,
        }


def same_answer_of(texts: Texts) -> SameAnswer | None:
    """Return the answer that nearly all of the last prompts got; None: there is none, or too few prompts. A prompt that
    comes again counts once."""
    last = {text.question: text.answer for text in texts.last}
    first = _at_first(texts)
    if len(last) < PROMPTS or not first:
        return None
    answer, count = Counter(last.values()).most_common(1)[0]
    share = count / len(last)
    before = sum(each == answer for each in first.values()) / len(first)
    return SameAnswer(answer, len(last), share, before) if share >= SAME_TEXT else None


def _at_first(texts: Texts) -> dict[str, str]:
    """Return the answers of the first steps, by question."""
    first: dict[str, str] = {}
    for _, of_step in groupby(texts.first, key=lambda text: text.step):
        first |= {text.question: text.answer for text in of_step}
        if len(first) >= FIRST:
            break
    return first
