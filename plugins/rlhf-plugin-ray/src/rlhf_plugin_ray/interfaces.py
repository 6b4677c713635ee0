"""This machine's network interfaces, by address."""

from __future__ import annotations

import fcntl
import ipaddress
import socket
import sys

SIOCGIFADDR = 0x8915
"""Linux's request for the first IPv4 address of an interface; the answer has it in bytes 20 to 24."""


def interface_with(address: str) -> str | None:
    """Name of the interface that has an IPv4 address first, or whose loopback it is; None if it cannot be told."""
    if sys.platform != "linux":
        return None
    try:
        wanted = ipaddress.IPv4Address(address)
    except ValueError:
        return None
    for _, name in socket.if_nameindex():
        found = _first_address(name)
        # All of 127.0.0.0/8 is the loopback's, whichever of it is its first.
        if found is not None and (found == wanted or (found.is_loopback and wanted.is_loopback)):
            return name
    return None


def _first_address(interface: str) -> ipaddress.IPv4Address | None:
    """None if it has none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        try:
            answer = fcntl.ioctl(asking.fileno(), SIOCGIFADDR, interface.encode().ljust(256, b"\0"))
        except OSError:
            return None
    return ipaddress.IPv4Address(answer[20:24])
