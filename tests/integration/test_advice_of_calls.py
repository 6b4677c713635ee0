"""Whoever follows what an error of a call advises gets further: of rows and templates, of images, of weights, of
requests, of runs and of packages. Each piece of the message is quoted by its case, and none is left out."""

import asyncio
import inspect
from importlib.util import find_spec

import pytest
from tests.advised_messages import FLAG, raised_messages

from .advised_theme import THEMES


def raised_by(call, **arguments):
    """Return what a call raises; None where it raises nothing."""
    try:
        found = call(**arguments)
        if inspect.iscoroutine(found):
            asyncio.run(found)
    except Exception as error:  # each message is looked at, whatever its class
        return error
    return None


def marks_of(case):
    scale = (
        [pytest.mark.scale, pytest.mark.skipif(not find_spec(case.needs), reason=case.needs)]
        if case.needs
        else []
    )
    return [*scale, *[pytest.mark.slow] * case.slow]


def one_line(text):
    return " ".join(text.split())


CASES = [(place, case) for table in THEMES for place, cases in table.items() for case in cases]


@pytest.mark.parametrize(
    ("place", "case"),
    [pytest.param(place, case, id=place, marks=marks_of(case)) for place, case in CASES],
)
def test_following_the_advice_of_a_call_gets_further(place, case, tmp_path, monkeypatch):
    (tmp_path / "wrong").mkdir()
    monkeypatch.chdir(tmp_path / "wrong")
    message = str(raised_by(case.call, **case.wrong))
    said = [one for one in raised_messages() if one.place == place and one.says(message)]
    assert said, message
    quoted = {flag for words in case.told for flag in FLAG.findall(words)}
    named = {flag for flag in FLAG.findall(one_line(message))}
    assert named <= {*quoted, *case.given}, "an option of which nobody tried what is told"
    assert case.told
    for number, (words, changed) in enumerate(case.told.items()):
        assert words in one_line(message), message
        (tmp_path / str(number)).mkdir()
        monkeypatch.chdir(tmp_path / str(number))
        after = raised_by(case.call, **{**case.wrong, **changed})
        assert after is None, (words, after)


def test_each_message_of_a_place_has_a_case():
    """A place with several messages is followed where each of them is."""
    for table in THEMES:
        for place, cases in table.items():
            assert len(cases) >= len(
                {one.template for one in raised_messages() if one.place == place}
            ), place
