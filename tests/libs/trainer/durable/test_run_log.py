import logging
from contextlib import contextmanager
from pathlib import Path

import pytest

from rlhf_core import plugins as plugin_loader
from rlhf_trainer.durable.run_log import run_log

CORE = logging.getLogger("rlhf_trainer.loop")
TOP = logging.getLogger("rlhf_trainer")


@pytest.fixture
def loaded():
    return plugin_loader.empty()


@contextmanager
def bare_root():
    """No handler above ours, as in a program that has set up nothing; pytest has its own."""
    root = logging.getLogger()
    kept = list(root.handlers)
    root.handlers.clear()
    try:
        yield
    finally:
        root.handlers[:] = kept


def test_information_and_warnings_of_the_body_are_in_the_file(loaded, tmp_path):
    path = tmp_path / "run.log"
    CORE.info("before")
    with run_log(path, loaded):
        CORE.debug("detail")
        CORE.info("during")
        CORE.warning("careful")
    CORE.warning("after")

    lines = path.read_text().splitlines()
    assert [line.split(" ", 2)[2] for line in lines] == [
        "INFO rlhf_trainer.loop: during",
        "WARNING rlhf_trainer.loop: careful",
    ]


def test_a_second_run_in_the_folder_appends(loaded, tmp_path):
    for text in ("first", "second"):
        with run_log(tmp_path / "run.log", loaded):
            CORE.info(text)

    assert [line.split()[-1] for line in (tmp_path / "run.log").read_text().splitlines()] == [
        "first",
        "second",
    ]


def test_loggers_are_left_as_they_were(loaded, tmp_path):
    before = (TOP.level, list(TOP.handlers))

    with pytest.raises(KeyError), run_log(tmp_path / "run.log", loaded):
        raise KeyError

    assert (TOP.level, list(TOP.handlers)) == before


def test_more_detail_that_somebody_asked_for_stays(loaded, tmp_path, monkeypatch):
    monkeypatch.setattr(TOP, "level", logging.DEBUG)
    CORE.manager._clear_cache()  # what monkeypatch set, past the setter that does this
    with run_log(tmp_path / "run.log", loaded):
        CORE.debug("detail")
    monkeypatch.undo()
    CORE.manager._clear_cache()

    assert "DEBUG rlhf_trainer.loop: detail" in (tmp_path / "run.log").read_text()


def test_warnings_are_still_printed_once_and_information_is_not(loaded, tmp_path, capsys):
    with bare_root(), run_log(tmp_path / "run.log", loaded):
        CORE.info("during")
        CORE.warning("careful")

    assert capsys.readouterr().err == "careful\n"


def test_notes_are_the_information_up_to_where_they_are_taken(loaded, tmp_path):
    with run_log(tmp_path / "run.log", loaded) as notes:
        CORE.info("groups of %s", "policy")
        CORE.warning("careful")
        taken = notes.taken()
        CORE.info("later")

    assert taken == ("groups of policy",)
    assert notes.taken() == ()


def test_plugins_write_to_it_too(tmp_path):
    loaded = plugin_loader.load()
    with run_log(tmp_path / "run.log", loaded):
        logging.getLogger("rlhf_plugin_algorithms.optimizers.muon").info("hello")

    assert "rlhf_plugin_algorithms.optimizers.muon: hello" in (tmp_path / "run.log").read_text()


def test_a_log_without_room_says_so_once(loaded, capsys):
    with run_log(Path("/dev/full"), loaded):
        for _ in range(2):
            CORE.warning("hello")

    told = [line for line in capsys.readouterr().err.splitlines() if "/dev/full" in line]
    assert told == ["/dev/full cannot be written to: No space left on device"]
