"""A run goes on at a service if its folder is the one that it was logged from."""

import shutil

import pytest

from rlhf_plugin_loggers.remembered import remember, remembered


@pytest.fixture
def output(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    remember(folder, "wandb", "ab12")
    return folder


def test_a_resumed_run_goes_on_there(output):
    assert remembered(output, "wandb") == "ab12"
    assert remembered(output, "mlflow") is None


def test_a_moved_folder_is_the_same_run(output):
    moved = output.rename(output.with_name("moved"))

    assert remembered(moved, "wandb") == "ab12"


def test_a_copied_folder_is_another_run_and_it_is_said(output, caplog):
    copy = shutil.copytree(output, output.with_name("copy"))

    assert remembered(copy, "wandb") is None
    assert f"{copy} is a copy of {output}, whose run at wandb is ab12" in caplog.text
    remember(copy, "wandb", "cd34")
    assert remembered(copy, "wandb") == "cd34"
    assert remembered(output, "wandb") == "ab12"


def test_an_identity_alone_is_taken(output):
    (output / "loggers" / "wandb").write_text("ef56\n")

    assert remembered(output, "wandb") == "ef56"
