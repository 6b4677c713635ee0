"""Environment `guess_number`: the policy finds a secret number by hints, in few guesses."""

from __future__ import annotations

from rlhf_core import Component, hookimpl
from rlhf_core.capabilities import ENDLESS_TASKS

from .environment import GuessNumber, GuessNumberConfig


@hookimpl
def rlhf_environments() -> list[Component[GuessNumber]]:
    return [
        Component(
            name="guess_number",
            factory=GuessNumber,
            config=GuessNumberConfig,
            summary="find a secret number by hints, in few guesses",
            provides=frozenset({ENDLESS_TASKS}),
        )
    ]
