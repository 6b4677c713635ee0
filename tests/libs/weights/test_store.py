"""The store at which processes of one machine meet is reached by this machine alone."""

from datetime import timedelta
from pathlib import Path

import pytest
import torch.distributed as dist

from rlhf_weights import is_loopback, open_store

LIMIT = timedelta(seconds=30)


def listening_at(port):
    lines = [
        line.split()
        for table in ("tcp", "tcp6")
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]
    ]
    return {
        fields[1].split(":")[0]
        for fields in lines
        if fields[3] == "0A" and int(fields[1].split(":")[1], 16) == port
    }


def test_a_store_of_one_machine_listens_on_the_loopback_alone():
    store = open_store("127.0.0.1", 0, LIMIT)
    other = dist.TCPStore(
        "127.0.0.1", store.port, is_master=False, wait_for_workers=False, timeout=LIMIT
    )

    other.set("key", "value")

    assert store.get("key") == b"value"
    if Path("/proc/net/tcp").exists():
        assert listening_at(store.port) == {"0100007F"}


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("127.8.0.1", True),
        ("localhost", True),
        ("::1", True),
        ("10.0.0.1", False),
        ("node-3", False),
    ],
)
def test_the_loopback_is_known_by_its_addresses(host, expected):
    assert is_loopback(host) is expected
