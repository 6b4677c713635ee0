"""Whoever follows the advice of an error gets further: not the same error, and none about what was just set."""

from functools import partial

import pytest
from tests.advice import changes, require_progress
from tests.libs.config.checks.test_effects import NO_EFFECT
from tests.libs.config.checks.test_rules import CONTRADICTIONS

from rlhf_config import Layer
from rlhf_core import ConfigError

CASES = {
    **{name: words for name, (words, _) in CONTRADICTIONS.items()},
    **{name: words for name, (words, _) in NO_EFFECT.items()},
    "evaluations of nothing": ["--eval.every", "5"],
}
VALUES = {
    "--log.to": "notebook",
    "--rollout.filters": "spread",
    "--model.vision": None,
    "--algo.terms.use": None,
}
"""Flag -> what may stand where a message leaves it open; None: the sample plugin has none that would do alone."""


def error_of(resolved, words):
    try:
        resolved(*words)
    except ConfigError as error:
        return str(error)
    return None


@pytest.mark.parametrize("words", CASES.values(), ids=CASES)
def test_following_an_advice_gets_further(resolved, words):
    require_progress(partial(error_of, resolved), words, VALUES)


def test_an_interval_of_a_file_can_be_switched_off_as_its_error_says(resolved):
    """The file evaluates every 5 steps on held-out rows, which the command line takes away."""
    file = Layer.of({"eval": {"every": 5, "data": ["held.jsonl"]}})

    with pytest.raises(ConfigError, match=r"or --eval\.every 0"):
        resolved("--eval.data", "none", files=[file])

    assert resolved("--eval.data", "none", "--eval.every", "0", files=[file]).run.eval.every == 0


def test_the_advice_is_found():
    message = "Set --eval.data FILE, or --eval.fraction 0.05 to hold rows out; or --eval.every 0."

    assert list(changes(["--eval.every", "5"], message, VALUES)) == [
        ("--eval.data", ["--eval.every", "5", "--eval.data", "file.jsonl"]),
        ("--eval.fraction", ["--eval.every", "5", "--eval.fraction", "0.05"]),
        ("--eval.every", ["--eval.every", "0"]),
    ]
    assert list(changes(["--old", "x"], "Set --new y in place of --old.", VALUES)) == [
        ("--new", ["--new", "y"])
    ]
