"""The store of torch at which processes meet; for processes of one machine it listens on the loopback alone."""

from __future__ import annotations

import ipaddress
import socket
from datetime import timedelta
from typing import Any

import torch.distributed

dist: Any = torch.distributed
"""Untyped: torch declares none of its stores as exported."""


def open_store(host: str, port: int, timeout: timedelta) -> Any:
    """Return a new store that other processes reach at ``host``.

    torch listens on all addresses of a machine and asks nobody for a password, so other machines could change what the
    processes agree on. Where ``host`` is an address of the loopback, the store listens on it alone.

    Args:
        port: where it listens; 0: on a free port, which is the store's ``port``.
        timeout: for every single wait.
    """
    if not is_loopback(host):
        return dist.TCPStore(host, port, is_master=True, wait_for_workers=False, timeout=timeout)
    listening = socket.create_server((host, port))
    store = dist.TCPStore(
        host,
        listening.getsockname()[1],
        is_master=True,
        wait_for_workers=False,
        timeout=timeout,
        master_listen_fd=listening.fileno(),
    )
    listening.detach()  # It is the store's, which closes it.
    return store


def reach_store(host: str, port: int, timeout: timedelta) -> Any:
    """Return the other end of a store that a process has opened.

    Raises:
        RuntimeError, ValueError: nobody answers there in time.
    """
    return dist.TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=timeout)


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches ``host``, an address or the name localhost."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
