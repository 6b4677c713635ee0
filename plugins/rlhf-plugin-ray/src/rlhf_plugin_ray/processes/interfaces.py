"""Look-up of this machine's network interface by its address."""

from __future__ import annotations

import fcntl
import ipaddress
import socket
import sys

SIOCGIFADDR = 0x8915
"""Linux's request for the first IPv4 address of an interface. The answer holds the address in bytes 20 to 24."""


def interface_with(address: str) -> str | None:
    """Return the name of the interface whose first IPv4 address is ``address``; for a loopback address, the loopback.

    The result is None if no interface has the address, if it is not IPv4, and on systems other than Linux.
    """
    if sys.platform != "linux":
        return None
    try:
        wanted = ipaddress.IPv4Address(address)
    except ValueError:
        return None
    for _, name in socket.if_nameindex():
        found = _first_address(name)
        # All addresses of 127.0.0.0/8 belong to the loopback interface, which names only one of them.
        if found is not None and (found == wanted or (found.is_loopback and wanted.is_loopback)):
            return name
    return None


def _first_address(interface: str) -> ipaddress.IPv4Address | None:
    """Return the first IPv4 address of an interface; None if it has none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        try:
            answer = fcntl.ioctl(asking.fileno(), SIOCGIFADDR, interface.encode().ljust(256, b"\0"))
        except OSError:
            return None
    return ipaddress.IPv4Address(answer[20:24])
