"""No summary of a command is cut off in a help."""

import pytest


@pytest.mark.parametrize("group", ["", "data", "env", "new", "plugins", "template"])
def test_summaries_are_whole(group, rlhf, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")

    code, out, _ = rlhf(*group.split(), "--help")

    assert code == 0
    lines = out.partition("Commands:")[2].splitlines()
    assert lines
    assert not [line for line in lines if line.endswith("...")]
    assert max(map(len, lines)) <= 80


def test_a_group_says_what_to_start_with(rlhf, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")

    assert "rlhf quickstart" in rlhf("--help")[1].rpartition("Commands:")[2].splitlines()[-1]
