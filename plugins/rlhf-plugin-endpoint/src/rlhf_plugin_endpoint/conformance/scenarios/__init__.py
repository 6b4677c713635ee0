"""The scenarios, by what they are about. Each plays an episode or several, and raises where something does not hold."""

from . import answers, branches, dialects, refusals, retries, tools
from .scene import Scenario

SCENARIOS: tuple[Scenario, ...] = (
    *answers.SCENARIOS,
    *tools.SCENARIOS,
    *branches.SCENARIOS,
    *retries.SCENARIOS,
    *dialects.SCENARIOS,
    *refusals.SCENARIOS,
)

__all__ = ["SCENARIOS", "Scenario"]
