import errno
import logging
import runpy

import pytest

from rlhf_core import RewardError, StorageError
from rlhf_core.problem import MAX_TEXT, headline, log_switched_off, problem_of


def test_the_text_of_an_exception_is_cut():
    assert len(problem_of(ValueError("x" * 10**6)).text) < MAX_TEXT + 100


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ValueError("first\nsecond"), "first"),
        (ValueError("\n first\nsecond"), "first"),
        (ValueError(""), "ValueError"),
        (ValueError(" \n"), "ValueError"),
        (SystemExit(3), "raised SystemExit: 3"),
    ],
)
def test_an_error_has_one_line_also_without_a_message(error, line):
    assert headline(error) == line


def test_the_line_that_raised_is_kept_also_behind_a_translation():
    def fails():
        raise KeyError("label")

    def translates():
        try:
            fails()
        except KeyError as error:
            raise RewardError("no label") from error

    with pytest.raises(RewardError) as caught:
        translates()
    problem = problem_of(caught.value)

    assert problem.text == "raised RewardError: no label"
    assert problem.where[-1].endswith('in fails: raise KeyError("label")')


def test_a_recursion_is_told_in_a_few_lines():
    def recurse():
        recurse()

    with pytest.raises(RecursionError) as caught:
        recurse()

    assert len(problem_of(caught.value).where) == 3


def test_a_users_line_is_kept_where_a_package_raised_far_below_it(tmp_path):
    """Without it the message says only where in Python's library a call of theirs ended."""
    (tmp_path / "mine.py").write_text(
        "from urllib.request import urlopen\n\n"
        "def ask():\n    return urlopen('file:///nowhere/at/all')\n"
    )
    ask = runpy.run_path(str(tmp_path / "mine.py"))["ask"]

    with pytest.raises(OSError, match="nowhere") as failed:
        ask()

    where = problem_of(failed.value).where
    assert "mine.py:4 in ask" in where[0]
    assert len(where) == 4
    assert not any("mine.py" in line for line in where[1:])


@pytest.mark.parametrize("package", ["rlhf_core", "rlhf_testing", "rlhf_weights", "rlhf_plugin_x"])
def test_lines_of_the_framework_are_no_lines_of_a_users_code(tmp_path, package):
    """Whatever package of its own a part of the core has become."""
    inner = tmp_path / package / "inner.py"
    inner.parent.mkdir()
    inner.write_text("def call(work):\n    work()\n")
    (tmp_path / "mine.py").write_text("def fail():\n    raise ValueError('no')\n")
    parts = [runpy.run_path(str(path)) for path in (inner, tmp_path / "mine.py")]

    with pytest.raises(ValueError, match="no") as failed:
        parts[0]["call"](parts[1]["fail"])

    assert not any("inner.py" in line for line in problem_of(failed.value).where)
    assert "mine.py:2 in fail" in problem_of(failed.value).where[-1]


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            StorageError("a.png could not be written: no room"),
            ": a.png could not be written: no room",
        ),
        (
            OSError(errno.ENOSPC, "No space left on device"),
            ": No space left on device. Make room there, and start again",
        ),
        (ValueError("a shape"), None),
        (FileNotFoundError(errno.ENOENT, "No such file"), None),
    ],
)
def test_an_error_with_a_name_is_logged_without_the_traceback_that_any_other_has(
    caplog, error, said
):
    log_switched_off(logging.getLogger("test"), error, "%s failed in %s", "the curve", "run_end")

    (record,) = caplog.records
    text = "the curve failed in run_end and is switched off for the rest of this run"
    assert record.getMessage() == text + (said or "")
    assert record.levelno == logging.ERROR
    assert (record.exc_info is None) == (said is not None)
