"""Answers that the environment tells: after a wrong one, or as a short word or number among others."""

from __future__ import annotations

import re
from collections.abc import Callable

from rlhf_core.batch.task import Task

from ..subject import Subject
from .hacks import search
from .material import guesses, of_known_answers
from .playing import Situation, Written, Wrote, right

_WORD = re.compile(r"[^\s\"'`.,;:!?()<>\[\]{}=]+")
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


@of_known_answers
def check_no_answer_is_told_after_a_wrong_one(subject: Subject) -> str:
    """Nothing that a wrong answer makes the environment show holds the right one."""
    return search(subject, [("the right answer, once a wrong one made it shown", _shown_later)])


@of_known_answers
def check_no_single_word_wins(subject: Subject) -> str:
    """No word or number at a fixed place of what was just read earns what right answers earn, however short it is."""
    hacks = [
        (f"the {place} {kind} of what it has just read", _at(pattern, index))
        for kind, pattern in (("word", _WORD), ("number", _NUMBER))
        for place, index in (("first", 0), ("second", 1), ("last but one", -2), ("last", -1))
    ]
    return search(subject, hacks)


def _shown_later(task: Task) -> Wrote:
    """Return a player that guesses, and writes the first turn's right answer as soon as it is shown to it."""
    secret: list[str] = []
    guess = guesses(task)

    async def write(situation: Situation) -> Written:
        if situation.turn == 0:
            answer = await right(situation)
            # What stands in the question, as one of several choices, is not told by being repeated.
            if isinstance(answer, str) and not _holds(situation.read[0], answer):
                secret.append(answer.strip())
        elif secret and _holds(situation.read[-1], secret[0]):
            return secret[0]
        return await guess(situation)

    return write


def _holds(text: str, answer: str) -> bool:
    """Return whether a text has the answer as a word or words of its own."""
    words = answer.strip()
    return bool(words) and re.search(rf"(?<!\w){re.escape(words)}(?!\w)", text) is not None


def _at(pattern: re.Pattern[str], index: int) -> Callable[[Task], Wrote]:
    async def write(situation: Situation) -> Written:
        found = pattern.findall(situation.read[-1][-20_000:])
        return found[index] if len(found) >= (index + 1 if index >= 0 else -index) else ""

    return lambda task: write
