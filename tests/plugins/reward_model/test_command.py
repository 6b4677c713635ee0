"""Mistakes on the command line of ``rlhf serve-rm``: exit code 2, one line, before a model is loaded."""

import json
import subprocess
import sys

import pytest

from rlhf_cli.main import main

pytest.importorskip("uvicorn")
pytest.importorskip("starlette")
from tests.deadlines import HANG_S


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--port", "99999"], "--port 99999: input should be less than or equal to 65535"),
        (["--host", "0.0.0.0", "--auth", "false"], "anybody who reaches this machine could ask"),
        (["--host", "203.0.113.7"], "cannot listen there"),
        (["--prot", "1"], "unrecognized arguments: --prot 1"),
        (["--mean", "1"], "--mean 1 is used with --normalize given only"),
    ],
)
def test_a_mistake_is_exit_code_two_and_names_the_flag(capsys, words, text):
    code = main(["serve-rm", "no-such-model", *words])

    assert code == 2
    assert text in capsys.readouterr().err.splitlines()[-1]


def test_an_unknown_flag_is_in_the_object_that_programs_read(capsys):
    assert main(["--errors", "json", "serve-rm", "no-such-model", "--prot", "1"]) == 2

    found = json.loads(capsys.readouterr().err.splitlines()[-1])
    assert (found["kind"], found["option"]) == ("ConfigError", "--prot")
    assert found["message"] == "rlhf serve-rm: unrecognized arguments: --prot 1"


def test_a_folder_that_is_no_model_is_exit_code_two(capsys, tmp_path):
    code = main(["serve-rm", str(tmp_path), "--port", "0"])

    assert code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: reward model {tmp_path}: expected a Transformers folder")


def test_help_lists_every_option_and_imports_no_torch():
    code = (
        "import sys; from rlhf_cli.main import main; main(['serve-rm', '--help']);"
        "print('torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=HANG_S, check=True
    )

    for flag in ("--host", "--port", "--dtype", "--device", "--batch-tokens", "--max-length"):
        assert flag in done.stdout
    assert done.stdout.rstrip().endswith("False")
