"""Rewards of right answers, of guesses, and of answers that should earn nothing, and what must lie between them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from statistics import fmean

from rlhf_core.batch.task import Task
from rlhf_core.contracts.environment import KnowsAnswers

from ..subject import Subject, traits
from .material import (
    RESULTS,
    environment_of,
    guesses,
    knows_answers,
    manifest_for,
    of_known_answers,
    seed_for,
    tasks_of,
)
from .playing import (
    MAX_TURNS,
    CheckedEpisode,
    Situation,
    Written,
    Wrote,
    always,
    named,
    played,
    right,
    run,
    shown,
)
from .results import states_a_range

MARGIN = 0.1
"""Smallest part of the rewards' range by which right answers have to earn more than guesses, as OpenEnv has it."""
SHORTEST_SECRET = 5
"""Number of characters from which an answer that the policy was shown is one that it was told."""
CANARIES = "canaries"
"""Column of a row with answers that must earn no more than a guess."""


def episodes(
    subject: Subject, player_of: Callable[[Task], Wrote], what: str
) -> list[CheckedEpisode]:
    """Return one episode for each task.

    Raises:
        AssertionError: the environment raised an exception; the message says in which episode.
    """

    async def all_of_them() -> list[CheckedEpisode]:
        found = []
        for task in tasks_of(subject):
            with named(f"{what}, task {task.uid.prompt}"):
                environment = environment_of(subject)
                seed, player = seed_for(task), player_of(task)
                found.append(await played(environment, task, seed, player, turns=MAX_TURNS))
        return found

    return run(all_of_them())


def mean_reward(found: Sequence[CheckedEpisode]) -> float:
    """Return the mean reward of episodes."""
    return fmean(episode.reward for episode in found)


def _states_a_range_and_knows_answers(subject: Subject) -> bool:
    return states_a_range(subject) and knows_answers(subject)


def _has_canaries_and_knows_answers(subject: Subject) -> bool:
    """Return whether a row names answers that must not earn anything."""
    canaries = any(CANARIES in task.row for task in tasks_of(subject))
    return canaries and knows_answers(subject)


@traits(_states_a_range_and_knows_answers, rests_on=RESULTS)
def check_oracle_max(subject: Subject) -> None:
    """Right answers earn the largest reward of the manifest's range, within its tolerance."""
    manifest = manifest_for(subject)
    assert manifest is not None
    assert manifest.reward_range is not None
    low, high = manifest.reward_range
    least = high - manifest.oracle_tolerance * (high - low) - 1e-6
    for number, episode in enumerate(episodes(subject, lambda task: right, "right answers")):
        assert episode.reward >= least, (
            f"task {number}: the right answers {shown(episode.written)} earn {episode.reward:g}; expected {least:g}"
        )


def _has_an_oracle(subject: Subject) -> bool:
    return isinstance(environment_of(subject), KnowsAnswers)


@of_known_answers
def check_floor_gap(subject: Subject) -> None:
    """Random letters earn less than right answers, by a tenth of the range or of the difference to nothing."""
    best = best_reward(subject)
    floor = floor_reward(subject)
    gap = MARGIN * span_of(subject, best)
    assert best - floor >= gap, (
        f"random letters earn {floor:g} on average, right answers {best:g}; expected a difference of at least {gap:g}"
    )


@traits(_has_canaries_and_knows_answers, rests_on=RESULTS)
def check_canary_floor(subject: Subject) -> None:
    """Answers that the rows name as wrong earn no more than random letters, within a tenth of the range."""
    best = best_reward(subject)
    floor = floor_reward(subject)
    most = floor + MARGIN * span_of(subject, best)
    for task in tasks_of(subject):
        for canary in task.row.get(CANARIES, ()):
            with named(f"task {task.uid.prompt}, canary {shown(canary)}"):
                environment = environment_of(subject)
                episode = run(played(environment, task, seed_for(task), always(canary)))
                assert episode.reward <= most, f"it earns {episode.reward:g}; at most {most:g}"


@traits(knows_answers)
def check_oracle_containment(subject: Subject) -> None:
    """The policy reads no right answer before it has to give it."""

    async def looked_at(situation: Situation) -> Written:
        answer = await right(situation)
        if isinstance(answer, str) and len(answer.strip()) >= SHORTEST_SECRET:
            for number, text in enumerate(situation.read):
                assert not _stands_in(answer.strip(), text), (
                    f"the answer of turn {situation.turn}, {shown(answer)}, stands in what the policy reads at turn "
                    f"{number}: {shown(text, 200)}"
                )
        return answer

    episodes(subject, lambda task: looked_at, "right answers")


@traits(_has_an_oracle)
def check_oracle_changes_nothing(subject: Subject) -> None:
    """``oracle`` only answers: asked again before the same turn it says the same."""

    async def asked_twice(situation: Situation) -> Written:
        first, second = await right(situation), await right(situation)
        assert first == second, (
            f"oracle before turn {situation.turn} says {shown(first)}, and asked again {shown(second)}"
        )
        return first

    episodes(subject, lambda task: asked_twice, "right answers")


def _stands_in(answer: str, text: str) -> bool:
    """Return whether ``text`` holds ``answer``, other than as some of the digits of a longer number."""
    before = r"(?<!\d)" if answer[0].isdigit() else ""
    after = r"(?!\d)" if answer[-1].isdigit() else ""
    return re.search(before + re.escape(answer) + after, text) is not None


def best_reward(subject: Subject) -> float:
    """Return the mean reward of right answers."""
    return mean_reward(episodes(subject, lambda task: right, "right answers"))


def floor_reward(subject: Subject) -> float:
    """Return the mean reward of random letters."""
    return mean_reward(episodes(subject, guesses, "random letters"))


def span_of(subject: Subject, best: float) -> float:
    """Return the width of the rewards' range: the manifest's, or else the distance of right answers from nothing."""
    manifest = manifest_for(subject)
    if manifest is not None and manifest.reward_range is not None:
        low, high = manifest.reward_range
        return high - low
    return abs(best)
