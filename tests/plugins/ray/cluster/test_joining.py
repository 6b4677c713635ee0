"""Addresses of clusters that are no more, where Ray itself would wait."""

import pytest
from tests.forked_ranks import free_port

from rlhf_core import ConfigError
from rlhf_testing.errors import has_code

pytest.importorskip("ray")
pytestmark = pytest.mark.scale

from rlhf_plugin_ray.cluster.joining import require_welcome  # noqa: E402  (after importorskip)


@pytest.fixture
def noted(tmp_path, monkeypatch):
    """Note a cluster as the last one that was started on this machine, on which none runs, as ``ray start`` does."""
    from ray._private import services

    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(services, "find_gcs_addresses", set)

    def note(address):
        (tmp_path / "ray").mkdir(exist_ok=True)
        (tmp_path / "ray" / "ray_current_cluster").write_text(address)

    return note


def test_auto_is_refused_where_the_last_cluster_of_the_machine_has_ended(noted):
    port = free_port()
    noted(f"127.0.0.1:{port}")

    with pytest.raises(
        ConfigError,
        match=rf":{port}\b.*for auto, .* started last",
        check=has_code("ray/unreachable"),
    ):
        require_welcome("auto", 2.0)


def test_auto_is_left_to_ray_where_no_cluster_was_started(noted):
    assert require_welcome("auto", 2.0) == "auto"


def test_the_address_of_a_cluster_goes_before_the_last_one_of_the_machine(noted, monkeypatch):
    noted("127.0.0.1:1")
    port = free_port()
    monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{port}")

    with pytest.raises(ConfigError, match=rf":{port}\b", check=has_code("ray/unreachable")):
        require_welcome("auto", 2.0)
