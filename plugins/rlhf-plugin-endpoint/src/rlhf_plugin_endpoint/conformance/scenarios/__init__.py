"""The scenarios, by what they are about. Each plays an episode or several, and raises where something does not hold."""

from . import answers, branches, dialects, refusals, retries, tools
from .scene import Scenario

SCENARIOS = tuple(
    each
    for module in (answers, tools, branches, retries, dialects, refusals)
    for each in vars(module).values()
    if isinstance(each, Scenario)
)
