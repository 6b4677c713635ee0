"""Texts that come again and again: one answer to nearly all prompts, and a phrase that most of the best answers have in
common and that answers did not have before."""

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
SHARE = 0.8
"""Share of the best answers from which on a phrase is what they are paid for, rather than a turn of speech."""
BEFORE = 0.1
"""Largest share of the first answers that had it."""
FEWEST = 10
"""Fewest best answers, in as many groups: a phrase of fewer is that of one prompt."""
WORDS = 3
"""Words of a phrase. Single words and pairs are those of a language. An answer of fewer words, as a number or a text of
a language without spaces, has phrases of as many characters."""
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


@dataclass(frozen=True, slots=True)
class Phrase:
    """A phrase with the share of the best answers that have it now, and of all answers that had it at first."""

    text: str
    share: float
    before: float

    def shown(self) -> str:
        """Return the phrase in quotes, with no character that a terminal obeys."""
        return json.dumps(self.text[:_SHOWN])


def phrase_of(texts: Texts) -> Phrase | None:
    """Return the commonest phrase of the best quarter of the last answers, if it is new; None: there is none."""
    ranked = sorted(texts.last, key=lambda text: -text.reward)
    best = ranked[: len(ranked) // 4]
    if len({text.group for text in best}) < FEWEST or not texts.first:
        return None
    counts: Counter[str] = Counter()
    for text in best:
        counts.update(_phrases(text.answer))
    if not counts:
        return None
    phrase, count = counts.most_common(1)[0]
    share = count / len(best)
    before = sum(phrase in _phrases(text.answer) for text in texts.first) / len(texts.first)
    return Phrase(phrase, share, before) if share >= SHARE and before <= BEFORE else None


def _phrases(answer: str) -> set[str]:
    words = answer.split()
    if len(words) < WORDS:
        return {answer[at : at + WORDS] for at in range(len(answer) - WORDS + 1)}
    return {" ".join(words[at : at + WORDS]) for at in range(len(words) - WORDS + 1)}
