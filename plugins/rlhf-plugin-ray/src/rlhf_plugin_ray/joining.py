"""What has to be true before Ray may connect to a cluster by its address.

Ray itself says little when it is not: at an address where nothing listens it tries for minutes, with the wrong token
for 20 seconds and then without naming the reason, and on a machine that is no node it ends the whole process.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ray.exceptions import AuthenticationError

from rlhf_core import ConfigError

ALIVE = 0
"""A node's state, as Ray numbers it."""
AUTH_MODE = "RAY_AUTH_MODE"
MAX_TOLD = 8


def require_welcome(address: str, timeout_s: float) -> None:
    """Return if a driver on this machine can connect to ``address``.

    A cluster that ``ray start`` has protected by the token of ``~/.ray/auth_token`` is answered with it, which Ray does
    for the address ``auto`` alone.

    Raises:
        ConfigError: nobody answers there, a token is wrong or missing, or no node of the cluster is on this machine.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or "/" in host:
        return  # a word, or a scheme, of Ray's own
    _require_listener(address, host, int(port), timeout_s)
    nodes = _nodes_at(address, timeout_s)
    alive = [node for node in nodes.values() if node.state == ALIVE]
    if any(Path(node.raylet_socket_name).exists() for node in alive):
        return
    told = ", ".join(sorted(node.node_manager_address for node in alive)[:MAX_TOLD])
    raise ConfigError(
        f"{socket.gethostname()} is no node of the Ray cluster {address!r}, whose nodes are {told or 'all dead'}. "
        f"Start the run on one of them, let this machine join with `ray start --address {address}`, or "
        "use `ray job submit`"
    )


def _require_listener(address: str, host: str, port: int, timeout_s: float) -> None:
    try:
        socket.create_connection((host, port), timeout_s).close()
    except OSError as error:
        raise ConfigError(
            f"could not connect to the Ray cluster {address!r} (runtime.ray.address or RAY_ADDRESS): {error}. "
            f"Start one there with `ray start --head --port {port}`, correct the address, or leave it unset for a "
            "cluster of the run's own"
        ) from error


def _nodes_at(address: str, timeout_s: float) -> Mapping[Any, Any]:
    """All nodes that the cluster has had; Any: Ray has no types for them."""
    try:
        try:
            return _ask(address, timeout_s)
        except AuthenticationError:
            if os.environ.get(AUTH_MODE) is not None or not _has_token():
                raise
            return _ask(address, timeout_s)
    except AuthenticationError as error:
        raise ConfigError(
            f"the Ray cluster {address!r} wants a token that this process does not have. Copy ~/.ray/auth_token from "
            f"its head node, or set RAY_AUTH_TOKEN, and leave {AUTH_MODE} unset or at 'token'"
        ) from error
    except Exception as error:  # Ray's errors of a connection have no class in common
        raise ConfigError(
            f"what listens at {address!r} does not answer as a Ray cluster of this version: {error}"
        ) from error


def _ask(address: str, timeout_s: float) -> Mapping[Any, Any]:
    from ray._raylet import GcsClient

    nodes: Mapping[Any, Any] = GcsClient(address=address).get_all_node_info(timeout=timeout_s)
    return nodes


def _has_token() -> bool:
    """True if Ray has found one, which this process and those that it starts use from now on. Ray 2.55 cannot be told
    to look for one."""
    try:
        from ray._private.authentication.authentication_token_setup import (
            maybe_enable_token_auth_if_token_available,
        )
    except ImportError:
        return False
    return bool(maybe_enable_token_auth_if_token_available(warn_if_disabled=False))
