"""The state of the work on stderr."""

from __future__ import annotations

import pytest

from rlhf_plugin_inference.worklist.progress import WorkProgress


def shown(capsys, wanted, every_s=300.0):
    with WorkProgress(wanted, total=9, done=4, every_s=every_s) as state:
        for _ in range(5):
            state.add(2, 100)
    assert state.done == 9
    return capsys.readouterr()


def test_without_a_terminal_a_line_tells_the_count_now_and_then(capsys):
    lines = shown(capsys, "plain", every_s=0.0).err.splitlines()

    assert [line.partition(",")[0] for line in lines] == [f"{n}/9 prompts" for n in range(5, 10)]
    assert all("completions/s" in line and "tokens/s" in line for line in lines)


def test_lines_are_rare(capsys):
    assert shown(capsys, "plain").err == ""


def test_a_bar_ends_at_the_total(capsys):
    assert "9/9" in shown(capsys, "live").err


@pytest.mark.parametrize("wanted", ["plain", "live", "off"])
def test_nothing_goes_to_standard_output(capsys, wanted):
    assert shown(capsys, wanted).out == ""
