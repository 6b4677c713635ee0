"""The kit holds for our endpoint; test_planted_drifts.py has what it finds in others."""

import re
from pathlib import Path

import pytest

from rlhf_plugin_endpoint.conformance import run_scenarios
from rlhf_plugin_endpoint.conformance.ours import OwnEndpoint
from rlhf_plugin_endpoint.conformance.scenarios import SCENARIOS

BY_NAME = {scenario.name: scenario for scenario in SCENARIOS}


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_our_endpoint_keeps_the_promise(scenario):
    (result,) = run_scenarios(OwnEndpoint(), [scenario])

    assert result.problem is None, result.problem


def test_the_kit_has_at_least_30_scenarios_with_names_of_their_own():
    assert len(BY_NAME) == len(SCENARIOS) >= 30


def test_the_page_has_each_scenario_with_its_promise():
    page = (Path(__file__).parents[3] / "docs" / "endpoint-conformance.md").read_text()

    rows = re.findall(r"^\| `(\w+)` \| (.*?) \| yes \|", page, flags=re.MULTILINE)

    assert rows == [(scenario.name, scenario.promise) for scenario in SCENARIOS]
