"""Ports of vLLM's processes, each of which has to be closed to whoever comes."""

from __future__ import annotations

import os
import socket

import psutil
import pytest


def require_no_answer() -> None:
    """Fail unless processes below this one listen, on the loopback alone, and none answers."""
    at = {
        row.laddr
        for process in psutil.Process(os.getpid()).children(recursive=True)
        for row in process.net_connections(kind="tcp")
        if row.status == psutil.CONN_LISTEN
    }
    assert at, "gloo listens in every worker"
    for address, port in at:
        assert address == "127.0.0.1"
        with pytest.raises(TimeoutError):
            socket.create_connection((address, port), timeout=0.2)
