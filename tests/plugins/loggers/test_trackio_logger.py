"""What is trackio's own: names that have to be unique, and where a run may go."""

import json
import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from pydantic import ValidationError
from tests.plugins.loggers.places import end, run_info

from rlhf_plugin_loggers.config import TrackioConfig


@pytest.fixture
def logged(place_of, tmp_path):
    """Log a step in a run folder with further options; return the runs' names and configurations in the database."""

    def log(folder="run", **options):
        place = place_of("trackio")
        logger = place.made(**options)
        logger.start(run_info(tmp_path / folder))
        logger.log_metrics(1, {"reward/mean": 0.5})
        logger.finish(end())
        file = Path(os.environ["TRACKIO_DIR"]) / f"{place.project}.db"
        with closing(sqlite3.connect(file)) as database:
            found = database.execute("select run_name, config from configs").fetchall()
        return [(name, json.loads(text)) for name, text in found]

    return log


def test_a_run_is_called_like_its_folder_with_an_end_that_makes_it_unique(logged, tmp_path):
    logged("first_run")
    ((one, _), (two, _)) = logged("second_run")

    assert one.startswith("first_run-")
    assert two.startswith("second_run-")
    assert len(one) == len("first_run-") + 6


def test_a_name_that_was_given_is_kept(logged):
    ((name, config),) = logged(name="mine", group="g")

    assert name == "mine"
    assert config["_Group"] == "g"


def test_a_run_goes_on_under_its_name_whatever_the_option_says_now(logged):
    logged(name="mine")

    assert {name for name, _ in logged(name="other")} == {"mine"}


def test_a_token_in_an_option_is_refused():
    with pytest.raises(ValidationError, match="set TRACKIO_WRITE_TOKEN"):
        TrackioConfig(server_url="http://host:7860/?write_token=abc")


def test_two_places_are_refused():
    with pytest.raises(ValidationError, match="space_id and server_url are two places"):
        TrackioConfig(space_id="me/space", server_url="http://host:7860")


def test_a_space_is_private_unless_asked_otherwise():
    assert TrackioConfig().private
