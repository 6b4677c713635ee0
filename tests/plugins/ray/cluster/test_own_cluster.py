"""A cluster of the run's own is closed to other users of the machine, and a start that fails leaves nothing."""

import os
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from tests.deadlines import HANG_S
from tests.open_places import promised

from rlhf_core import ConfigError
from rlhf_testing.errors import has_code

pytestmark = pytest.mark.scale
ray = pytest.importorskip("ray")

from rlhf_plugin_ray.cluster import own_cluster  # noqa: E402  # needs Ray
from rlhf_plugin_ray.cluster.cluster import RayCluster  # noqa: E402
from rlhf_plugin_ray.config import RayRuntimeConfig  # noqa: E402

LISTENS = "0A"
LOOPBACK = {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}
"""127.0.0.1, the same as an IPv6 address, and ::1, as Linux writes them."""


def sockets_of(pids):
    """Return the addresses on which these processes listen, by port."""
    inodes = set()
    for pid in pids:
        for descriptor in Path(f"/proc/{pid}/fd").glob("*"):
            try:
                inodes.add(os.readlink(descriptor).removeprefix("socket:[").rstrip("]"))
            except OSError:
                continue
    found = {}
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == LISTENS and fields[9] in inodes:
                address, port = fields[1].split(":")
                found[int(port, 16)] = address
    return found


def descendants(pid):
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in children.read_text().split():
            yield int(child)
            yield from descendants(int(child))


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    folder = Path(tempfile.mkdtemp(prefix="t", dir="/tmp"))  # short: sockets have at most 107 bytes
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("RAY_ADDRESS", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    yield folder
    folder.rmdir()  # which fails if something is left


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::ResourceWarning")  # Ray does not wait for what it ended
def test_all_sockets_are_on_the_loopback_and_its_files_below_a_folder_of_its_owner(
    temporary, tmp_path
):
    before = dict(os.environ)
    cluster = RayCluster(RayRuntimeConfig(cpus=2, object_store_mib=100, show_output=False))
    try:
        cluster.open()
        give_up = time.monotonic() + HANG_S
        while len(found := sockets_of([os.getpid(), *descendants(os.getpid())])) < 9:
            assert time.monotonic() < give_up, found
            time.sleep(0.5)
        assert set(found.values()) <= LOOPBACK, found
        assert stat.S_IMODE(cluster.logs.stat().st_mode) == 0o700
        assert stat.S_IMODE((cluster.logs / "token").stat().st_mode) == 0o600
        assert ray.nodes()[0]["NodeManagerAddress"] == own_cluster.LOOPBACK
        where = promised("What listens, and where", "a cluster of Ray")
        assert where.startswith("127.0.0.1, ")
        assert "`rlhf-ray-*` (0700)" in where
        assert promised("Files", "the folder `rlhf-ray-*`") == "0700"
        assert promised("Files", "Ray's token") == "0600"
    finally:
        cluster.close(keep_logs=False)
    assert not (tmp_path / ".ray").exists()
    mine = {own_cluster.TOKEN_PATH_VARIABLE, *own_cluster.ENVIRONMENT}
    assert not (mine & os.environ.keys()) - before.keys()


def test_a_start_that_times_out_is_one_message_and_leaves_nothing(temporary, monkeypatch):
    def stuck(**options):
        Path(options["_temp_dir"]).mkdir(mode=0o777)
        raise Exception(
            "The current node timed out during startup.\nTraceback (most recent call last):\n ..."
        )

    monkeypatch.setattr(ray, "init", stuck)
    cluster = RayCluster(RayRuntimeConfig())

    with pytest.raises(ConfigError) as caught:
        cluster.open()

    assert "could not start Ray on this machine: The current node timed out during startup." in str(
        caught.value
    )
    assert "Traceback" not in str(caught.value)
    assert cluster.logs is None
    assert "RAY_AUTH_TOKEN_PATH" not in os.environ


def test_a_folder_with_too_long_a_name_is_refused_before_anything_starts(tmp_path, monkeypatch):
    """Schedulers set TMPDIR to a folder of the job, whose name is long."""
    names = len("/rlhf-ray-12345678/s" + own_cluster.LONGEST_SOCKET.format(pid=os.getpid()))
    fits = tmp_path / "fits"
    monkeypatch.setattr(own_cluster, "MOST_BYTES", len(str(fits)) + names)
    for folder, is_refused in ((fits, False), (tmp_path / "fits2", True)):
        folder.mkdir()
        monkeypatch.setattr("tempfile.tempdir", str(folder))
        if not is_refused:
            own_cluster.OwnFolder().remove()
            continue
        with pytest.raises(
            ConfigError, match="is longer by 1 bytes", check=has_code("ray/long-folder")
        ):
            own_cluster.OwnFolder()
        assert not list(folder.iterdir())


def test_what_a_failed_start_left_running_is_ended(temporary):
    folder = own_cluster.OwnFolder()
    process = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(600)", str(folder.sessions)]
    )
    try:
        folder.end_processes()
        assert process.wait(HANG_S) == -9
    finally:
        process.kill()
        folder.remove()


def test_a_token_of_the_user_stays(temporary, monkeypatch):
    monkeypatch.setenv("RAY_AUTH_TOKEN", "a" * 64)
    folder = own_cluster.OwnFolder()
    try:
        folder.offer_token()
        assert "RAY_AUTH_TOKEN_PATH" not in os.environ
        assert list(folder.path.iterdir()) == []
    finally:
        folder.remove()
