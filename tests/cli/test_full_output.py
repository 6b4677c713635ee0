"""Output that has no room, such as that into a file on a full disk: one error by name, and the exit code says it."""

import json
import subprocess
import sys

import pytest
from tests.deadlines import HANG_S

from rlhf_cli import main as program
from rlhf_cli.main import main


def into_full(*words):
    """Exit code and stderr of ``rlhf WORDS > /dev/full``."""
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "rlhf_cli.main", *words],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=HANG_S,
        )
    return done.returncode, done.stderr


@pytest.mark.parametrize("words", [("plugins",), ("--help",)])
def test_output_without_room_is_an_error_by_name(words):
    code, told = into_full(*words)

    assert code == 1
    what = "error: a file, or what this command prints, could not be written: "
    assert told == f"{what}No space left on device. Make room there, and start again\n"


def test_a_program_reads_it_as_an_object():
    code, told = into_full("--errors", "json", "plugins", "--json")

    assert code == 1
    found = json.loads(told)
    assert (found["kind"], found["exit_code"]) == ("StorageError", 1)
    assert found["fix"] == "Make room there, and start again"


def test_a_write_that_nobody_named_has_the_name_of_its_file(monkeypatch, capsys):
    def full(*_):
        raise OSError(28, "No space left on device", "/cache/file")

    monkeypatch.setattr(program, "command_tree", full)

    assert main(["plugins"]) == 1
    assert capsys.readouterr().err.startswith("error: /cache/file could not be written: No space")
