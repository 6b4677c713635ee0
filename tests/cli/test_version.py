"""The version that ``rlhf --version`` prints, for reports of bugs."""

import platform
from importlib.metadata import version

import pytest


def test_the_version_is_one_line_with_that_of_python(rlhf):
    code, out, err = rlhf("--version")

    assert (code, err) == (0, "")
    assert out == f"rlhf-cli {version('rlhf-cli')}, Python {platform.python_version()}\n"


@pytest.mark.parametrize("words", [("--errors", "json", "--version"), ("--version", "train")])
def test_the_version_is_told_whatever_stands_beside_the_flag(rlhf, words):
    code, out, err = rlhf(*words)

    assert (code, err) == (0, "")
    assert out.startswith("rlhf-cli ")


def test_the_help_lists_the_flag(rlhf):
    assert "--version" in rlhf("--help")[1]
