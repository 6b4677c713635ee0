"""The port where ranks meet is nobody else's from the moment it is told to them."""

import socket
import sys
from datetime import timedelta

import pytest
import torch.distributed as dist

from rlhf_plugin_ray.processes.process import HeldPort

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="other systems do not hold a port")


@pytest.fixture
def port():
    held = HeldPort()
    yield held
    held.release()


def test_another_program_is_not_given_it(port):
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(("", port.number))


def test_the_first_rank_can_listen_on_it(port):
    store = dist.TCPStore(
        "127.0.0.1", port.number, 1, is_master=True, timeout=timedelta(seconds=30)
    )

    port.release()

    store.set("greeting", "hello")
    guest = dist.TCPStore("127.0.0.1", port.number, is_master=False, timeout=timedelta(seconds=30))
    assert guest.get("greeting") == b"hello"


def test_a_released_port_is_free_again(port):
    port.release()

    with socket.socket() as other:
        other.bind(("", port.number))
        assert other.getsockname()[1] == port.number
