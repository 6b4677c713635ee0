"""Running scenarios against an endpoint, and the report of what holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .adapter import EndpointUnderTest
from .checks import Nonconforming
from .client import RefusedRequest
from .scenarios import SCENARIOS
from .scenarios.scene import Scenario


@dataclass(frozen=True, slots=True, kw_only=True)
class ScenarioResult:
    """Result of one scenario."""

    scenario: Scenario
    problem: str | None
    """The first thing that does not hold; None: all holds."""


def run_scenarios(
    endpoint: EndpointUnderTest, scenarios: Sequence[Scenario] = SCENARIOS
) -> list[ScenarioResult]:
    """Run scenarios one after another, each in episodes of its own.

    What an endpoint answers is not known beforehand, so whatever a scenario stumbles over is a problem of the endpoint.
    """
    results = []
    for scenario in scenarios:
        problem = None
        try:
            scenario.play(endpoint)
        except (Nonconforming, RefusedRequest) as error:
            problem = str(error)
        except (OSError, ValueError, KeyError, IndexError, TypeError) as error:
            problem = f"{type(error).__name__}: {error}"
        results.append(ScenarioResult(scenario=scenario, problem=problem))
    return results


def report(endpoint: EndpointUnderTest, results: Sequence[ScenarioResult]) -> str:
    """Return the results as text, one line each."""
    lines = [
        f"{'ok  ' if each.problem is None else 'FAIL'} {each.scenario.name:<28} "
        f"{each.problem or each.scenario.promise}"
        for each in results
    ]
    passed = sum(each.problem is None for each in results)
    return "\n".join([*lines, f"{endpoint.name}: {passed} of {len(results)} scenarios hold"])
