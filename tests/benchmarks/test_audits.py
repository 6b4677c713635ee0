"""The tables of docs/audit.md, reduced: faults are named, and healthy runs are not blamed."""

import random

import pytest
from benchmarks import audits, healthy_runs
from tests.cases import one_in

NAMED = ("temperature", "template", "routes: ids", "pixels: colors")


@pytest.mark.slow
def test_planted_faults_are_named(tmp_path, capsys):
    audits.write_tasks(tmp_path, 1)

    audits.planted(tmp_path, 1, NAMED)

    said = capsys.readouterr().out
    assert f"seed 1: {len(NAMED)} of {len(NAMED)} named rightly" in said, said


@pytest.mark.slow
@pytest.mark.parametrize("number", one_in(2, (2, 5)))
def test_healthy_runs_of_random_options_are_not_blamed(tmp_path, number):
    healthy_runs.write_task(tmp_path, 1)
    draw, looked = random.Random(1), 0

    while looked < number:
        seen, words = healthy_runs.looked_at(draw, tmp_path, 1)
        assert not isinstance(seen, str), (seen, words)
        assert not seen.blamed, (seen, words)
        looked += seen.audits > 0
