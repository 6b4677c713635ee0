"""Every message behind a ``raise`` that names an option: what it tells to set is a value that the option can have, and
the message is one that a test of advice follows, or its place is one of the few that need a GPU or a cluster."""

import pytest
from pydantic import TypeAdapter, ValidationError
from tests.advice import ADVICE, LEAVING, PLACEHOLDERS
from tests.advised_messages import HOLE, raised_messages

from rlhf_cli.runs import training_commands
from rlhf_config.sections import fields_of
from rlhf_core.plugins import load

from .advised_calls import CASES
from .advised_places import EXCUSED, FOLLOWED
from .advised_theme import THEMES
from .test_advised_options import trees


@pytest.fixture(scope="module")
def fields():
    """The fields of options of all commands and components, by path; a path may be one of several commands."""
    plugins = load("")
    found, commands = {}, trees(plugins)
    assert commands.keys() >= training_commands(plugins).keys()
    for tree in commands.values():
        for path, info in fields_of(tree.model):
            found.setdefault(path, []).append(info)
        for slot in tree.selectors:
            for entry in plugins.registries[slot.hook]:
                for path, info in fields_of(entry.component.config):
                    found.setdefault(f"{slot.section}.{entry.name}.{path}", []).append(info)
    return found


def is_legal(info, text):
    """Whether an option can have what stands behind it on a command line."""
    adapter = TypeAdapter(info.annotation)
    number = int(text) if text.isdigit() else text
    for value in (text, [text], number, None if text == "none" else text):
        try:
            adapter.validate_python(value)
        except ValidationError:
            continue
        return True
    return False


def set_by(message):
    """Yield options and the values that a message tells to set, where it says both."""
    for found in ADVICE.finditer(message.template.replace(HOLE, "...")):
        value = found["value"]
        literal = value is not None and value not in PLACEHOLDERS and value[0] != "."
        if literal and "." in found["flag"] and not LEAVING.match(found[0]):
            yield found["flag"].removeprefix("--"), value


def test_what_a_message_tells_to_set_is_a_value_of_the_option(fields):
    told = [(one, path, value) for one in raised_messages() for path, value in set_by(one)]
    words = set(
        [
            "to",
            "in",
            "with",
            "at",
            "and",
            "or",
            "too",
            "is",
            "below",
            "of",
            "has",
            "if",
            "say",
            "one",
        ]
    )
    checked = [case for case in told if case[1] in fields and case[2] not in words]

    assert len(checked) > 25
    assert not [
        (one.place, path, value)
        for one, path, value in checked
        if not any(is_legal(info, value) for info in fields[path])
    ]


def test_a_value_that_an_option_cannot_have_would_be_found(fields):
    info = fields["engine.embedded.decode"][0]

    assert is_legal(info, "stepwise")
    assert not is_legal(info, "stepwize")


def test_every_message_that_names_an_option_is_followed_or_excused_by_its_name():
    places = {one.place for one in raised_messages()}
    called = [place for table in THEMES for place in table]
    followed = {*FOLLOWED, *CASES, *called}

    assert not followed - places, "places that are gone"
    assert len(followed) == len(FOLLOWED) + len(CASES) + len(called), (
        "places that are followed twice"
    )
    assert sorted(places - followed) == sorted(EXCUSED)
    assert len(EXCUSED) <= 2, "what can be raised on this machine is followed, and not excused"
