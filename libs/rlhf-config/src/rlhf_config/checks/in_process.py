"""The rule that components which use objects of the run's process stay in it."""

from __future__ import annotations

from collections.abc import Iterator

from rlhf_core.capabilities import IN_PROCESS
from rlhf_core.plugins import GIVEN

from ..problems import Labels
from ..resolved import Selections


def in_process_rules(selections: Selections, labels: Labels) -> Iterator[str]:
    """Yield a problem for each component that needs objects of the run's process and is to be placed in another one."""
    for selection in (one for found in selections.values() for one in found):
        if IN_PROCESS not in selection.needs:
            continue
        if selection.registered.plugin == GIVEN:
            why = f"{selection.name} is an object of this Python program"
            advice = (
                "Leave the option out, or write the object into a file and name it FILE.py:NAME."
            )
        else:
            why = f"{selection.name} uses what the run's process holds in memory"
            advice = "Leave the option out, and set isolate = false for a reward."
        if selection.reward is not None and selection.reward.isolate:
            yield (
                f"{labels(f'{selection.section}.isolate')} is true, but {why}, which another process does not have.\n"
                f"  {advice}"
            )
        place = selection.environment.isolation if selection.environment is not None else "none"
        if place != "none":
            yield (
                f"{labels(f'{selection.section}.isolation')} is {place}, but {why}, which another process does not "
                f"have.\n  {advice}"
            )
