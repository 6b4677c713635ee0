"""Whoever follows the advice of an error gets further: not the same error, and none about what was just set."""

import re

import pytest
from tests.libs.config.checks.test_effects import NO_EFFECT
from tests.libs.config.checks.test_rules import CONTRADICTIONS

from rlhf_config import Layer
from rlhf_core import ConfigError

CASES = {
    **{name: words for name, (words, _) in CONTRADICTIONS.items()},
    **{name: words for name, (words, _) in NO_EFFECT.items()},
    "evaluations of nothing": ["--eval.every", "5"],
}
ADVICE = re.compile(
    r"(?:[Ss]et|[Aa]dd|[Cc]hoose|[Tt]ry|[Ll]eave|or) (--[a-z][\w.]*\w)(?: ([\w./-]*\w))?"
    r"(?: in place of (--[a-z][\w.]*\w))?"
)
PLACEHOLDERS = {"FILE": "file.jsonl", "MODEL": "some/model", "NAME": None, "FOLDER": "folder"}
NAMES = {
    "--log.to": "notebook",
    "--rollout.filters": "spread",
    "--model.vision": None,
    "--algo.terms.use": None,
}
"""Flag -> a component that a NAME may stand for; None: the sample plugin has none that would do alone."""


def without(words, flag):
    """Leave a flag and its values out, also where its value is behind ``=``."""
    kept, leaving = [], False
    for word in words:
        if word.startswith("--"):
            leaving = word.partition("=")[0] == flag
        if not leaving:
            kept.append(word)
    return kept


OTHER_WORDS = {"to", "too", "or", "and", "is", "in", "below", "above", "of", "out"}


def changes(words, message):
    """Yield each change that a message advises: its flag, and the words of who follows it.

    Left out are those of which the message does not say what to write.
    """
    for found in ADVICE.finditer(message):
        flag, value, instead = found.groups()
        if value and value.isupper():
            value = PLACEHOLDERS.get(value) or NAMES.get(flag)
        rest = without(without(words, flag), instead)
        if found[0].lower().startswith("leave"):
            yield flag, rest
        elif value is not None and value not in OTHER_WORDS:
            yield flag, [*rest, flag, value]


def error_of(resolved, words):
    try:
        resolved(*words)
    except ConfigError as error:
        return str(error)
    return None


def arrives(resolved, words, steps=4):
    """Return whether some advice, and those of the errors after it, lead to a run, or to what no message can say."""
    message = error_of(resolved, words)
    if message is None or steps == 0:
        return message is None
    found = [then for _, then in changes(words, message) if then != words]
    return not found or any(arrives(resolved, then, steps - 1) for then in found)


@pytest.mark.parametrize("words", CASES.values(), ids=CASES)
def test_following_an_advice_gets_further(resolved, words):
    before = error_of(resolved, words)
    assert before is not None

    for flag, then in changes(words, before):
        after = error_of(resolved, then)
        assert after is None or after != before, then
        assert f"{flag} would change nothing" not in (after or ""), (then, before)
        assert "no such option" not in (after or ""), (then, before)
        assert arrives(resolved, then), (then, before, after)


def test_an_interval_of_a_file_can_be_switched_off_as_its_error_says(resolved):
    """The file evaluates every 5 steps on held-out rows, which the command line takes away."""
    file = Layer.of({"eval": {"every": 5, "data": ["held.jsonl"]}})

    with pytest.raises(ConfigError, match=r"or --eval\.every 0"):
        resolved("--eval.data", "none", files=[file])

    assert resolved("--eval.data", "none", "--eval.every", "0", files=[file]).run.eval.every == 0


def test_the_advice_is_found():
    message = "Set --eval.data FILE, or --eval.fraction 0.05 to hold rows out; or --eval.every 0."

    assert list(changes(["--eval.every", "5"], message)) == [
        ("--eval.data", ["--eval.every", "5", "--eval.data", "file.jsonl"]),
        ("--eval.fraction", ["--eval.every", "5", "--eval.fraction", "0.05"]),
        ("--eval.every", ["--eval.every", "0"]),
    ]
    assert list(changes(["--old", "x"], "Set --new y in place of --old.")) == [
        ("--new", ["--new", "y"])
    ]
