"""Functions by which an engine takes part in ``auto``: each breaks one promise, and the check says which."""

import pytest

from rlhf_core import Component
from rlhf_testing.conformance import applying, subject
from rlhf_testing.conformance.kinds.placing.suits import check_suits_judges_any_machine

FUNCTIONS = '''
import sys
from pathlib import Path
from rlhf_core.contracts import Suitability

calls = []

def right(setting):
    """Asks what is there and nothing else."""
    known = isinstance(setting.model.get("hidden_size"), int)
    return Suitability(rank=1 if known and setting.accelerators else None, reason="it depends")

def about_every_model(setting):
    return Suitability(rank=1, reason=f"{setting.model['hidden_size'] * 2} wide")

def a_tuple(setting):
    return (1, "good")

def endless(setting):
    return Suitability(rank=float("inf"), reason="the best of all")

def as_text(setting):
    return Suitability(rank="high", reason="good")

def silent(setting):
    return Suitability(rank=1, reason=" ")

def in_a_sentence(setting):
    return Suitability(rank=1, reason="It is good.")

def of_its_mood(setting):
    calls.append(setting)
    return Suitability(rank=len(calls) % 2, reason="good")

def by_pandas(setting):
    import pandas
    return Suitability(rank=1, reason="good")

def by_the_driver(setting):
    try:
        Path("/dev/nvidia0").open().close()
    except OSError:
        pass
    return Suitability(rank=1, reason="good")
'''


@pytest.fixture
def engine(tmp_path, monkeypatch):
    """An engine whose ``suits`` is one of the functions above."""
    (tmp_path / "fits_of_all_kinds.py").write_text(FUNCTIONS)
    monkeypatch.syspath_prepend(tmp_path)

    def named(function):
        suits = f"fits_of_all_kinds:{function}"
        return subject(Component(name="mine", factory=object, suits=suits))

    return named


def test_a_right_one_passes_and_an_engine_without_it_is_not_asked(engine):
    check_suits_judges_any_machine(engine("right"))

    asked = [check.name for check in applying("rlhf_engines", engine("right"))]
    assert "check_suits_judges_any_machine" in asked
    without = subject(Component(name="mine", factory=object))
    assert "check_suits_judges_any_machine" not in [
        check.name for check in applying("rlhf_engines", without)
    ]


@pytest.mark.parametrize(
    ("function", "said"),
    [
        ("about_every_model", "about a CPU raised KeyError: 'hidden_size'"),
        ("a_tuple", "gave a tuple, expected a Suitability"),
        ("endless", "rank inf, expected a finite number"),
        ("as_text", "rank 'high', expected a number or None"),
        ("silent", "reason ' ', expected one line of text"),
        ("in_a_sentence", r"reason 'It is good\.' ends with a full stop"),
        ("of_its_mood", "and then"),
        ("by_pandas", "imports pandas; it is asked before anything heavy is imported"),
        ("by_the_driver", r"looks for GPUs itself \(/dev/nvidia\); read setting.accelerators"),
        ("nowhere", "could not be asked"),
    ],
)
def test_a_broken_one_is_caught(engine, function, said):
    with pytest.raises(AssertionError, match=said):
        check_suits_judges_any_machine(engine(function))
