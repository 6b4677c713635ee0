"""The kit holds for our endpoint, and finds what is wrong with another."""

import re
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from rlhf_plugin_endpoint.conformance import report, run_scenarios
from rlhf_plugin_endpoint.conformance.ours import OwnEndpoint
from rlhf_plugin_endpoint.conformance.scenarios import SCENARIOS

BY_NAME = {scenario.name: scenario for scenario in SCENARIOS}


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_our_endpoint_keeps_the_promise(scenario):
    (result,) = run_scenarios(OwnEndpoint(), [scenario])

    assert result.problem is None, result.problem


class Altered:
    """Our endpoint, whose trace is altered before anybody sees it."""

    name, temperature = "altered", 1.0

    def __init__(self, alter):
        self._alter = alter

    @contextmanager
    def episode(self, policy):
        with OwnEndpoint().episode(policy) as episode:
            finish = episode.finish
            episode.finish = lambda: self._alter(finish())
            yield episode


def on_last_row(change):
    def alter(trace):
        *rows, last = trace.rows
        return replace(trace, rows=(*rows, *change(last)))

    return alter


PLANTED = {
    "a row is missing": on_last_row(lambda row: []),
    "a row is there twice": on_last_row(lambda row: [row, row]),
    "a token is another one": on_last_row(
        lambda row: [replace(row, token_ids=(*row.token_ids[:-1], row.token_ids[-1] + 1))]
    ),
    "a token of the prompt is another one": on_last_row(
        lambda row: [replace(row, token_ids=(row.token_ids[0] + 1, *row.token_ids[1:]))]
    ),
    "the last token does not train": on_last_row(
        lambda row: [
            replace(row, mask=(*row.mask[:-1], False), logprobs=row.logprobs[:-1]),
        ]
    ),
    "a token of the prompt trains": on_last_row(
        lambda row: [replace(row, mask=(True, *row.mask[1:]), logprobs=(-0.5, *row.logprobs))]
    ),
    "log-probs are shifted by one token": on_last_row(
        lambda row: [replace(row, logprobs=(*row.logprobs[1:], row.logprobs[0]))]
    ),
    "the mask is shifted by one token": on_last_row(
        lambda row: [replace(row, mask=(*row.mask[1:], False))]
    ),
    "end-of-sequence is left out": on_last_row(
        lambda row: [
            replace(
                row,
                token_ids=row.token_ids[:-1],
                mask=row.mask[:-1],
                logprobs=row.logprobs[:-1],
            )
        ]
    ),
    "each turn is a path": lambda trace: replace(trace, num_paths=trace.num_paths + 1),
}


@pytest.mark.parametrize("fault", PLANTED)
def test_a_planted_fault_is_found(fault):
    endpoint = Altered(PLANTED[fault])

    results = run_scenarios(endpoint, [BY_NAME["two_turns"]])

    assert results[0].problem is not None
    assert "altered: 0 of 1 scenarios hold" in report(endpoint, results)


def test_only_the_longest_path_fails_where_several_train():
    def longest(trace):
        return replace(trace, rows=(max(trace.rows, key=lambda row: len(row.token_ids)),))

    wanted = ("swapped_system", "sub_agent", "compaction", "no_manifest", "thoughts")
    results = run_scenarios(Altered(longest), [BY_NAME[name] for name in wanted])

    assert [each.scenario.name for each in results if each.problem is None] == []


def test_the_kit_has_at_least_30_scenarios_with_names_of_their_own():
    assert len(BY_NAME) == len(SCENARIOS) >= 30


def test_the_page_has_each_scenario_with_its_promise():
    page = (Path(__file__).parents[3] / "docs" / "endpoint-conformance.md").read_text()

    rows = re.findall(r"^\| `(\w+)` \| (.*?) \| yes \|", page, flags=re.MULTILINE)

    assert rows == [(scenario.name, scenario.promise) for scenario in SCENARIOS]
