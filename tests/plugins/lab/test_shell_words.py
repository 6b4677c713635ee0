"""Commands that the page offers to copy: a shell reads the run's name as it is, whatever is in it."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from rlhf_plugin_lab.paper.contents import quoted, replay_command

NAMES = [
    "runs/first", "two words", "it's", 'a"b', "$(touch pwned)", "`touch pwned`", "a; touch pwned", "a\ntouch pwned\n",
    "~", "*", "a\\b", "-n", "!!", "é", "", "\x1b[201~touch pwned", "\u202egnp.exe", "\u200b", "tab\tand\rreturn",
    "it's\n\\x41", "\x1bc0ffee", "#", "{a,b}", os.fsdecode(b"latin \xe9"),
]  # fmt: skip


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_a_shell_reads_every_name_as_it_is(tmp_path, shell):
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    words = " ".join(map(quoted, NAMES))

    done = subprocess.run(
        [shell, "-c", f"printf '%s\\0' {words}"], capture_output=True, cwd=tmp_path, check=True
    )

    assert done.stdout.split(b"\0")[:-1] == [os.fsencode(name) for name in NAMES]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", NAMES)
def test_what_is_copied_has_nothing_that_a_terminal_obeys_or_hides(name):
    assert quoted(name).isprintable()


def test_the_command_names_the_run_as_it_was_given():
    assert replay_command(Path("runs/first")) == "rlhf replay runs/first"
    assert replay_command(Path("runs/my run")) == "rlhf replay 'runs/my run'"


def test_a_name_that_begins_with_a_dash_is_no_flag():
    assert replay_command(Path("-x")) == "rlhf replay ./-x"
