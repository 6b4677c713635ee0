"""The runtime keeps what every runtime promises, with real Ray: roles in processes, killed ones, and what is left."""

import pytest

from rlhf_core import plugins
from rlhf_testing.conformance import parametrize_checks, subject

pytest.importorskip("ray")
pytestmark = [pytest.mark.scale, pytest.mark.usefixtures("cluster", "here")]

RAY = subject(
    plugins.load("").get("rlhf_runtimes", "ray:ray"), close_timeout_s=3.0, show_output=False
)


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder for the files by which roles speak."""
    monkeypatch.chdir(tmp_path)


@parametrize_checks("rlhf_runtimes", {"ray": RAY})
def test_contract(check, subject):
    check(subject)
