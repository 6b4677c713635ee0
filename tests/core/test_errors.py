"""Codes of errors: the class's, or that of the mistake, in another process too."""

import pickle

import pytest

from rlhf_core import errors

CLASSES = [
    kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, errors.RLHFError)
]


@pytest.mark.parametrize("kind", CLASSES)
def test_an_error_has_the_code_of_its_class(kind):
    assert kind("why").code == kind.default_code


def test_each_class_has_a_code_of_its_own():
    assert len({kind.default_code for kind in CLASSES}) == len(CLASSES)


@pytest.mark.parametrize("kind", CLASSES)
def test_an_error_keeps_message_and_code_on_its_way_to_another_process(kind):
    error = kind("why", code="data/missing-column")

    received = pickle.loads(pickle.dumps(error))

    assert (type(received), str(received), received.code) == (kind, "why", "data/missing-column")


def test_a_plugins_own_error_has_the_code_of_its_base():
    class LostGame(errors.EnvironmentFailure):
        """A game that ended."""

    assert LostGame("why").code == "environment/failed"


def test_another_text_keeps_class_and_code():
    class LostGame(errors.EnvironmentFailure, code="environment/lost"):
        """A game that ended, with a class of its own that takes the message alone."""

        def __init__(self, message: object = "") -> None:
            super().__init__(message)

    lost = LostGame("why").with_text("game 3: why")
    given = errors.DataError("why", code="data/no-rows").with_text("a.jsonl: why")

    assert (type(lost), str(lost), lost.code) == (LostGame, "game 3: why", "environment/lost")
    assert (type(given), str(given), given.code) == (
        errors.DataError,
        "a.jsonl: why",
        "data/no-rows",
    )


def test_a_code_is_an_errors_own_unless_it_is_that_of_a_class_of_the_framework():
    class Mine(errors.RewardError, code="reward/mine"):
        pass

    assert errors.RewardError("why").own_code is None
    assert errors.RewardError("why", code="reward/gone").own_code == "reward/gone"
    assert Mine("why").own_code == "reward/mine"
