"""Checks before Ray connects to a cluster by its address, with errors that name the reason.

Ray's own errors do not help: where nothing listens at the address, Ray tries for minutes. With a wrong token Ray tries
for 20 seconds and does not name the reason. On a machine that is no node of the cluster Ray ends the whole process.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from ray.exceptions import AuthenticationError

from rlhf_core import ConfigError

AUTO = "auto"
"""Ray's word for the cluster of this machine."""
ALIVE = 0
"""Ray's number for the state of a node that is alive."""
AUTH_MODE = "RAY_AUTH_MODE"
"""Environment variable by which Ray is named whether a cluster wants a token."""
MAX_NAMED = 8
"""Number of node addresses that an error names at most."""


class _Node(Protocol):
    """One entry of Ray's table of nodes, for which Ray has no types."""

    state: int
    raylet_socket_name: str
    node_manager_address: str


def require_welcome(address: str, timeout_s: float) -> str:
    """Return ``address`` as ``ray.init`` takes it, if a driver on this machine can connect to it.

    For ``auto`` it is the address that Ray finds on this machine: that of the cluster that runs, or else of the last
    one that was started, which may have ended long ago. Ray itself would wait for that one without an end.

    ``ray start`` may have protected the cluster by the token in ``~/.ray/auth_token``. This process then uses this
    token; Ray itself does so for the address ``auto`` only.

    Raises:
        ConfigError: no cluster answers at the address, the token is wrong or missing, or this machine is no node.
    """
    if address == AUTO:
        address = _found_by_ray()
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or "/" in host:
        return address  # a word that Ray knows, or an address with a scheme, such as "ray://"
    _require_listener(address, host, int(port), timeout_s)
    nodes = _nodes_at(address, timeout_s)
    alive = [node for node in nodes.values() if node.state == ALIVE]
    if any(Path(node.raylet_socket_name).exists() for node in alive):
        return address
    named = ", ".join(sorted(node.node_manager_address for node in alive)[:MAX_NAMED])
    raise ConfigError(
        f"{socket.gethostname()} is no node of the Ray cluster {address!r}, whose nodes are {named or 'all dead'}. "
        f"Start the run on one of them, let this machine join with `ray start --address {address}`, or "
        "use `ray job submit`",
        code="ray/unreachable",
    )


def _found_by_ray() -> str:
    """Return the address that ``auto`` is on this machine; ``auto`` if there is none, which Ray says itself."""
    from ray._private.services import canonicalize_bootstrap_address

    try:
        return canonicalize_bootstrap_address(AUTO) or AUTO
    except (ConnectionError, ValueError):
        return AUTO


def _require_listener(address: str, host: str, port: int, timeout_s: float) -> None:
    try:
        socket.create_connection((host, port), timeout_s).close()
    except OSError as error:
        raise ConfigError(
            f"could not connect to the Ray cluster {address!r} (runtime.ray.address or RAY_ADDRESS; for auto, the "
            f"cluster that was started last on this machine): {error}. "
            f"Start one there with `ray start --head --port {port}`, correct the address, or leave it unset for a "
            "cluster of the run's own",
            code="ray/unreachable",
        ) from error


def _nodes_at(address: str, timeout_s: float) -> Mapping[object, _Node]:
    """Return all nodes that are or were part of the cluster, by Ray's id."""
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
            f"its head node, or set RAY_AUTH_TOKEN, and leave {AUTH_MODE} unset or at 'token'",
            code="ray/token",
        ) from error
    except Exception as error:  # Ray's connection errors have no common base class
        raise ConfigError(
            f"what listens at {address!r} (runtime.ray.address or RAY_ADDRESS) does not answer as a Ray cluster of "
            f"this version: {error}. Correct the address, or leave it unset for a cluster of the run's own",
            code="ray/unreachable",
        ) from error


def _ask(address: str, timeout_s: float) -> Mapping[object, _Node]:
    from ray._raylet import GcsClient  # type: ignore[attr-defined]  # compiled, without types

    nodes: Mapping[object, _Node] = GcsClient(address=address).get_all_node_info(timeout=timeout_s)
    return nodes


def _has_token() -> bool:
    """Return True if Ray has found a token, which this process and its children use from now on.

    Ray 2.55 has no public function for this.
    """
    try:
        from ray._private.authentication.authentication_token_setup import (
            maybe_enable_token_auth_if_token_available,
        )
    except ImportError:
        return False
    return bool(maybe_enable_token_auth_if_token_available(warn_if_disabled=False))
