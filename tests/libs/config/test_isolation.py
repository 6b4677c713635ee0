import pytest
from pydantic import ValidationError

from rlhf_config.isolation import IsolationOptions


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"isolation": "process", "workers": 4},
        {"isolation": "venv", "python": "/venv", "pass_env": ["KEY"]},
        {"isolation": "remote", "address": ["127.0.0.1:1"]},
    ],
)
def test_a_place_with_what_it_needs_is_taken(options):
    assert IsolationOptions(**options).isolation == options.get("isolation", "none")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"isolation": "venv"}, "expected python, an interpreter or the folder"),
        ({"python": "/venv"}, "isolation = 'none' with python = '/venv'"),
        ({"isolation": "remote"}, "expected the HOST:PORT of a server"),
        ({"isolation": "process", "address": ["a:1"]}, "isolation = 'process' with address"),
        ({"pass_env": ["KEY"]}, r"pass_env = \['KEY'\] with isolation = 'none'"),
    ],
)
def test_what_would_have_no_effect_or_no_place_is_refused(options, text):
    with pytest.raises(ValidationError, match=text):
        IsolationOptions(**options)
