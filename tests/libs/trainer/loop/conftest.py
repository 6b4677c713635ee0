"""Runs of the loop without a model, see ``small_run``."""

import shutil

import pytest

from .small_run import SmallRun, write_small_run


@pytest.fixture(scope="session")
def small_run_files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("small_run")
    write_small_run(folder)
    return folder


@pytest.fixture
def small_run(small_run_files, tmp_path, monkeypatch):
    """Runs in a folder of their own, which is the current directory."""
    shutil.copytree(small_run_files, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return SmallRun(tmp_path)
