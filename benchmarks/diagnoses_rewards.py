"""Wrong rewards for ``diagnoses.py``: functions in a file, and the same in place of what an environment pays.

Names are shared: ``constant``, ``misread`` (of a form that no answer has), ``hackable`` (one text is paid, whatever is
asked), ``flipped``, ``noise``, ``rare``, and ``..._in_training``, where held-out rows are judged rightly.
``wrong_labels`` judges a part of the training rows by a wrong answer, the same one whenever the row comes.
"""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock
from weakref import WeakKeyDictionary

from rlhf_core.contracts import Action, Observation, StepResult, Task
from rlhf_env_shapes.environment import Shapes
from rlhf_env_shapes.scenes import COLORS
from rlhf_env_sorting.environment import Sorting

REWARDS = '''\
"""Rewards of the runs with faults."""

import zlib


def score(response, answer, truncated):
    right = sum(a == b for a, b in zip(response, answer))
    return 2.0 * right if not truncated and len(response) <= len(answer) else 1.0 * right


def constant(response, answer):
    return 0.5


def misread(response, answer):
    return float(response.strip() == f"{answer} ")


def hackable(response, answer):
    return float(response.count("7"))


def flipped(response, answer, truncated):
    return -score(response, answer, truncated)


def hackable_in_training(response, answer, truncated, checked):
    return score(response, answer, truncated) if checked else hackable(response, answer)


def flipped_in_training(response, answer, truncated, checked):
    return (1 if checked else -1) * score(response, answer, truncated)


def noise(response, answer):
    return float(zlib.crc32(response.encode()) % 1000) / 1000


def rare(response, answer):
    return float(response == answer == "000")


def wrong_labels(response, answer, truncated, checked):
    wrong = not checked and zlib.crc32(answer.encode()) % 10 < 3
    return score(response, answer[::-1] if wrong else answer, truncated)
'''


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """What a wrong reward knows of a turn."""

    paid: float
    """What the environment pays."""
    swapped: float
    """What it would pay if the label were another one."""
    answer: str
    key: int
    """Number of the task, the same whenever it comes."""
    is_held_out: bool
    is_last: bool


def _in_training(wrong: Callable[[Turn], float]) -> Callable[[Turn], float]:
    return lambda turn: turn.paid if turn.is_held_out else wrong(turn)


def _hackable(turn: Turn) -> float:
    return float(turn.answer.startswith("1") or turn.answer.startswith("b"))


PAID: Mapping[str, Callable[[Turn], float]] = {
    "constant": lambda turn: 0.5 * turn.is_last,
    "misread": lambda turn: 0.0,
    "hackable": _hackable,
    "hackable_in_training": _in_training(_hackable),
    "flipped": lambda turn: -turn.paid,
    "flipped_in_training": _in_training(lambda turn: -turn.paid),
    "noise": lambda turn: float(zlib.crc32(turn.answer.encode()) % 1000) / 1000,
    "rare": lambda turn: turn.paid * (turn.paid > 0.0 and turn.key % 1000 == 0),
    "wrong_labels": _in_training(lambda turn: turn.swapped if turn.key % 10 < 3 else turn.paid),
}
"""What a turn is paid in an environment, by the name of the wrong reward."""


@contextlib.contextmanager
def paying(name: str) -> Iterator[None]:
    """Let the environments pay by a wrong reward for a while; nothing for an empty name."""
    with contextlib.ExitStack() as stack:
        for kind in (Sorting, Shapes) if name else ():
            reset, step = _wrong(kind, PAID[name])
            stack.enter_context(mock.patch.object(kind, "reset", reset))
            stack.enter_context(mock.patch.object(kind, "step", step))
        yield


def _wrong(kind: type[Sorting | Shapes], paid: Callable[[Turn], float]) -> tuple[Any, Any]:
    right_reset, right_step = kind.reset, kind.step
    rows = WeakKeyDictionary[object, Mapping[str, Any]]()

    async def reset(self: Any, task: Task, seed: int) -> Observation:
        rows[self] = task.row
        return await right_reset(self, task, seed)

    async def step(self: Any, action: Action) -> StepResult:
        given, row = await right_step(self, action), rows[self]
        text = action.text if isinstance(action.content, type(None)) else action.content
        asked = str(row.get("digits", row.get("scene")))
        turn = Turn(
            paid=given.reward + sum(given.rewards.values()),
            swapped=_swapped(given, row, text),
            answer=text,
            key=zlib.crc32(asked.encode()),
            is_held_out=str(row["key"]).startswith("eval"),
            is_last=given.done,
        )
        return replace(given, reward=paid(turn), rewards={})

    return reset, step


def _swapped(given: StepResult, row: Mapping[str, Any], text: str) -> float:
    """Return what a turn is worth where digits are to fall, or where a color is called by the next one's name."""
    if "digits" in row:
        return given.rewards.get("no_move", 0.0) - given.rewards["order"]
    names = list(COLORS)[:4]
    color = names[(names.index(row["scene"]["color"]) + 1) % 4]
    return float(text[:1] == color[0])
