"""Every published bug that is put back into our code is caught: by the conformance kit, or by a formula written out."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.deadlines import HANG_S

from rlhf_testing.conformance import CHECKED_HOOKS, run_checks

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
from tests.mutants.mutant import place_of  # noqa: E402
from tests.mutants.running import MUTANTS, judge, load  # noqa: E402

NEED_A_MODEL = ("rlhf_train_backends", "rlhf_engines", "rlhf_model_adapters")


def _parameters(items, hook_of, name_of, every):
    """Of those that need a model CI runs one of ``every``, and `make mutants` all."""
    slow = [item for item in items if hook_of(item) in NEED_A_MODEL]
    return [
        pytest.param(
            item, id=name_of(item), marks=_marks(slow.index(item) % every) if item in slow else []
        )
        for item in items
    ]


def _marks(rest):
    return [pytest.mark.slow, *([pytest.mark.matrix] if rest else [])]


@pytest.fixture(scope="module")
def plugins():
    return load()


def test_what_each_bug_replaces_is_there():
    """Those that need a model run seldom, and would be found late."""
    for target in {mutant.target for mutant in MUTANTS if mutant.target}:
        holder, name = place_of(target)
        assert name in vars(holder), target


@pytest.mark.parametrize(
    "mutant", _parameters(MUTANTS, lambda mutant: mutant.hook, lambda mutant: mutant.bug, every=4)
)
def test_the_checks_catch_the_bug(mutant, plugins):
    verdict = judge(mutant, plugins, all_checks=False)

    assert verdict.caught_by, f"{mutant.bug} ({mutant.source}) survives all checks"
    assert verdict.reason


@pytest.mark.parametrize(
    "pair",
    _parameters(
        sorted({(mutant.hook, mutant.component) for mutant in MUTANTS}),
        lambda pair: pair[0],
        lambda pair: pair[1],
        every=2,  # the engine and the backend
    ),
)
def test_the_code_without_a_bug_passes_all_checks(pair, plugins):
    hook, component = pair

    outcomes = run_checks(hook, plugins.get(hook, component))

    assert [outcome for outcome in outcomes if outcome.failed] == []


def test_the_list_is_long_and_covers_most_kinds():
    kinds = {mutant.hook for mutant in MUTANTS}

    assert len(MUTANTS) >= 25
    assert len({mutant.bug + mutant.hook for mutant in MUTANTS}) == len(MUTANTS)
    assert kinds <= set(CHECKED_HOOKS)
    assert len(kinds) >= 7


@pytest.mark.slow
def test_the_command_prints_the_list_and_says_how_many_were_caught():
    hook = "rlhf_advantage_estimators"
    number = sum(mutant.hook == hook for mutant in MUTANTS)

    done = subprocess.run(
        [sys.executable, "-m", "tests.mutants", hook],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=2 * HANG_S,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert number > 1
    assert f"{number} of {number} caught" in done.stdout
    assert done.stdout.count("caught by") == number


def test_the_page_lists_every_bug():
    page = (ROOT / "docs" / "conformance.md").read_text()

    for number, mutant in enumerate(MUTANTS, 1):
        assert f"| {number} | {mutant.bug} | {mutant.source} | " in page
