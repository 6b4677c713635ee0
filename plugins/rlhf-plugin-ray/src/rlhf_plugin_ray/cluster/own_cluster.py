"""A cluster of the run's own: on the loopback, with a token and a folder that no other user of the machine can read.

Ray by itself listens on every address of the machine, writes its token with mode 0644 and gives its folder mode 0777.
"""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rlhf_core import ConfigError

from .reaper import kill_all, processes_of

LOOPBACK = "127.0.0.1"
TOKEN_VARIABLE = "RAY_AUTH_TOKEN"
TOKEN_PATH_VARIABLE = "RAY_AUTH_TOKEN_PATH"
ENVIRONMENT = {
    # When this process is killed, Ray's servers end with it; Ray's workers would look for the servers for 60 s.
    "RAY_gcs_rpc_server_reconnect_timeout_s": "5",
    # The ranks and engines of one machine need no other address.
    "GLOO_SOCKET_IFNAME": "lo",
    "NCCL_SOCKET_IFNAME": "lo",
    "VLLM_HOST_IP": LOOPBACK,
}
"""Environment variables of the cluster's processes. A variable that the user has set keeps its value."""

_END_LIMIT_S = 5.0
_POLL_S = 0.05
MOST_BYTES = 107
"""Longest name of a socket, in bytes."""
LONGEST_SOCKET = "/session_2026-01-01_00-00-00_000000_{pid}/sockets/plasma_store"
"""Longest name of a socket of Ray's below its folder of sessions; the other numbers are those of the time."""


class OwnFolder:
    """A folder of mode 0700 with everything that the cluster writes: sessions, sockets, logs, and its token.

    Raises:
        ConfigError: its name is too long for sockets.
    """

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="rlhf-ray-"))
        # Ray gives the folder that it is told a mode of 0777, so that is one below.
        self.sessions = self.path / "s"
        self._token = self.path / "token"
        self._names_token = False
        longest = f"{self.sessions}{LONGEST_SOCKET.format(pid=os.getpid())}"
        longer = len(os.fsencode(longest)) - MOST_BYTES
        if longer > 0:
            self.remove()
            raise ConfigError(
                f"the name of the folder for temporary files, {tempfile.gettempdir()}, is longer by {longer} bytes "
                "than sockets of Ray allow. Set the variable TMPDIR to another one, such as /tmp",
                code="ray/long-folder",
            )

    def offer_token(self) -> None:
        """Make the cluster's token, which Ray finds by a variable; a token that the user has set keeps its place."""
        if TOKEN_VARIABLE in os.environ or TOKEN_PATH_VARIABLE in os.environ:
            return
        with open(self._token, "x", encoding="ascii", opener=_for_the_owner) as file:
            file.write(secrets.token_hex(32))
        os.environ[TOKEN_PATH_VARIABLE] = str(self._token)
        self._names_token = True
        _forget_token()

    def withdraw_token(self) -> None:
        """Forget the cluster's token, so that this process can join or start another cluster."""
        if self._names_token:
            os.environ.pop(TOKEN_PATH_VARIABLE, None)
            self._names_token = False
            _forget_token()

    def end_processes(self) -> None:
        """Kill what a start has left: each of Ray's processes has the folder in its command line."""
        give_up = time.monotonic() + _END_LIMIT_S
        while (left := list(processes_of(self.sessions))) and time.monotonic() < give_up:
            kill_all(left)
            time.sleep(_POLL_S)

    def remove(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.path, ignore_errors=True)


@contextmanager
def on_loopback() -> Iterator[None]:
    """Let ``ray.init`` start a cluster at 127.0.0.1, where it does not listen on other addresses.

    Ray replaces 127.0.0.1 by an address that other machines reach, even if it is asked for by name, unless this is a
    system on which it knows no clusters of several machines. It has no option for that, so the constant is changed.
    """
    from ray._private import ray_constants

    before = ray_constants.ENABLE_RAY_CLUSTER
    ray_constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before


def _for_the_owner(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _forget_token() -> None:
    """Let Ray, which reads its token once, read it again. Versions before 2.53 have no tokens."""
    try:
        from ray._raylet import AuthenticationTokenLoader  # type: ignore[attr-defined]  # compiled
    except ImportError:
        return
    AuthenticationTokenLoader.instance().reset_cache()
