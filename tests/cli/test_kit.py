"""Commands of the conformance kit where it is not installed."""

import pytest

from rlhf_cli import kit, main


@pytest.mark.parametrize(
    "words", [("check", "gae"), ("env", "check", "countdown"), ("env", "try", "countdown")]
)
def test_a_command_that_needs_the_kit_says_how_to_install_it(words, monkeypatch, capsys):
    monkeypatch.setattr(kit.importlib.util, "find_spec", lambda name: None)

    assert main.main(words) == 1

    assert "kit, rlhf-testing, which is not installed" in (text := capsys.readouterr().err)
    assert "pip install 'rlhf-cli[check]'" in text
