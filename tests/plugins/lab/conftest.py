"""A run folder with two rollouts of one prompt."""

import pytest
from tests.plugins.lab.run_folders import sample, write_run


@pytest.fixture
def run(tmp_path):
    samples = [sample(), sample("0.5.1.0", response="390", reward=0.0)]
    return write_run(tmp_path / "runs/first", samples)
