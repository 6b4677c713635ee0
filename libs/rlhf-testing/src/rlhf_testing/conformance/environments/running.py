"""The policy's answers are text: no environment runs it, and none touches what other episodes draw from."""

from __future__ import annotations

import os
import random

from ..subject import Subject
from .material import FEW_TASKS, environment_of, guesses, seed_for, tasks_of
from .playing import always, named, played, run, shown

_MARK = "RLHF_ENVIRONMENT_CHECK"
_CODE = f"__import__('os').environ.__setitem__('{_MARK}', '1')"
PROGRAMS = (
    _CODE,
    f"<action>{_CODE}</action>",
    f"<answer>{_CODE}</answer>",
    f"\\boxed{{{_CODE}}}",
    f"```python\n{_CODE}\n```",
    f"[{_CODE}]",
)
"""Answers that leave a mark in this process where they are run."""


def check_text_is_not_run(subject: Subject) -> None:
    """No answer is run as Python in the environment's process: no ``eval`` of what the policy wrote."""
    task = tasks_of(subject, 1)[0]
    for program in PROGRAMS:
        with named(f"after {shown(program)}"):
            try:
                run(played(environment_of(subject), task, seed_for(task), always(program), turns=2))
                was_run = _MARK in os.environ
            finally:
                os.environ.pop(_MARK, None)
            assert not was_run, (
                "the answer ran as a program in the environment's process. Parse text (ast.literal_eval, json), or "
                "run programs in a sandbox"
            )


def check_global_randomness_is_left_alone(subject: Subject) -> None:
    """An episode seeds no generator that others draw from: ``random.seed`` in reset makes other episodes alike."""
    before = random.getstate()
    try:
        for task in tasks_of(subject, FEW_TASKS):
            left = []
            for start in (1, 2):
                random.seed(start)
                run(played(environment_of(subject), task, seed_for(task), guesses(task), turns=2))
                left.append(random.getstate())
            assert left[0] != left[1], (
                f"task {task.uid.prompt}: the episode seeds Python's global random generator, from which other "
                "episodes draw too. Draw from a generator of its own: random.Random(seed)"
            )
    finally:
        random.setstate(before)
