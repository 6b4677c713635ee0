"""Whoever follows the advice of an error gets further: not the same error, and none about what was just set."""

from functools import partial

import pytest
from tests.advice import changes, require_progress
from tests.libs.config.checks.test_effects import NO_EFFECT
from tests.libs.config.checks.test_rules import CONTRADICTIONS

from rlhf_config import Layer
from rlhf_core import ConfigError
from rlhf_testing.errors import has_code

CASES = {
    **{name: words for name, (words, *_) in CONTRADICTIONS.items()},
    **{name: words for name, (words, _) in NO_EFFECT.items()},
    "evaluations of nothing": ["--eval.every", "5"],
}
VALUES = {
    "--actor.lr_schedule": "cosine",
    "--algo.kl.coef": "0.1",
    "--checkpoint.best_metric": None,
    "--data.chat": "true",
    "--log.samples": "4",
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


BY_HAND = {
    "shares without sets": ["--data.probabilities", "1"],
    "shares that do not add up": ["--data", "b", "--data.probabilities", "0.5", "0.5"],
    "template with a broken brace": ["--data.template", "Q: {{q{q}}}"],
    "template without a column": ["--data.template", "Q: {q}"],
    "template with a position": ["--data.template", "Q: {question}"],
    "no room to answer": ["--rollout.max_length", "2048"],
    "weightless rewards": ["--reward.pattern.weight", "1"],
    "evaluation sets of one name": ["--eval.data", "a=x", "b=y"],
}
"""Case -> the words of who follows a message that says it without an option and its value."""


@pytest.mark.parametrize("name", [name for name in CASES if name not in BY_HAND])
def test_following_an_advice_gets_further(resolved, name):
    require_progress(partial(error_of, resolved), CASES[name], VALUES)


@pytest.mark.parametrize("name", BY_HAND)
def test_what_a_message_asks_for_in_words_is_enough(resolved, name):
    error = error_of(resolved, CASES[name])

    assert error is not None
    assert not changes(CASES[name], error, VALUES)
    assert error_of(resolved, BY_HAND[name]) is None


def test_an_interval_of_a_file_can_be_switched_off_as_its_error_says(resolved):
    """The file evaluates every 5 steps on held-out rows, which the command line takes away."""
    file = Layer.of({"eval": {"every": 5, "data": ["held.jsonl"]}})

    with pytest.raises(
        ConfigError, match=r"or --eval\.every 0", check=has_code("eval/nothing-held-out")
    ):
        resolved("--eval.data", "none", files=[file])

    assert resolved("--eval.data", "none", "--eval.every", "0", files=[file]).run.eval.every == 0


def test_a_message_without_an_advice_fails():
    with pytest.raises(AssertionError, match="nothing that a message tells to do"):
        require_progress(lambda words: "--data.x is wrong", ["--data.x", "1"], {})


def test_the_advice_is_found():
    message = "Set --eval.data FILE, or --eval.fraction 0.05 to hold rows out; or --eval.every 0."

    assert changes(["--eval.every", "5"], message, VALUES) == [
        ("--eval.data", ["--eval.every", "5", "--eval.data", "file.jsonl"]),
        ("--eval.fraction", ["--eval.every", "5", "--eval.fraction", "0.05"]),
        ("--eval.every", ["--eval.every", "0"]),
    ]
    assert changes(["--old", "x"], "Set --new y in place of --old.", VALUES) == [
        ("--new", ["--new", "y"])
    ]
