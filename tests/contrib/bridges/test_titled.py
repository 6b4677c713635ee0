"""Errors of an environment of verifiers: the title before what failed, also within a group of tasks."""

import pytest

from rlhf_bridge_verifiers.titled import titled
from rlhf_core import RolloutError
from rlhf_testing.errors import has_code

GONE = RolloutError("the sandbox is gone", code="environment/unreachable")


@pytest.mark.parametrize(
    ("error", "says", "code"),
    [
        (GONE, "game 1.0: the sandbox is gone", "environment/unreachable"),
        (ValueError("no"), "game 1.0: ValueError: no", "environment/raised"),
        (
            ExceptionGroup("several", [ExceptionGroup("tasks", [ValueError("no")])]),
            "game 1.0: ValueError: no",
            "environment/raised",
        ),
        (
            ExceptionGroup("several", [GONE]),
            "game 1.0: the sandbox is gone",
            "environment/unreachable",
        ),
    ],
)
def test_an_error_has_the_title_and_keeps_its_words_and_its_code(error, says, code):
    with pytest.raises(RolloutError, check=has_code(code)) as raised, titled("game 1.0"):
        raise error

    assert str(raised.value) == says
