"""A file that a process hands to the other processes of its user on this machine, which know the number of a meeting.

The socket is a Unix one without a path (Linux), which is gone with its process. The kernel names the user at the far
end, so that neither end talks to anybody else.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
import time
from typing import Final

from .connections import ForeignConnection

AGAIN_S: Final = 0.02
"""Seconds between two attempts to reach a door."""
BACKLOG: Final = 1024
_CREDENTIALS: Final = struct.Struct("3i")
"""Process, user and group at the far end of a Unix socket (``SO_PEERCRED``)."""


class Door:
    """Hands ``file`` to every process of this user that comes, until ``close``.

    Args:
        number: number of the meeting.
        file: descriptor of the file, which stays the caller's.

    Raises:
        OSError: another process has the door of this number (``EADDRINUSE``).
    """

    def __init__(self, number: int, file: int) -> None:
        self._file = file
        self._lines: list[socket.socket] = []
        self._socket = socket.socket(socket.AF_UNIX)
        try:
            self._socket.bind(_name(number))
            self._socket.listen(BACKLOG)
        except BaseException:
            self._socket.close()
            raise
        self._thread = threading.Thread(target=self._serve, name="rlhf-door", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Let nobody in any more, and end the lines to those who came."""
        with contextlib.suppress(OSError):  # closed before
            self._socket.shutdown(socket.SHUT_RDWR)  # which ends a pending `accept`
        if threading.current_thread() is not self._thread:  # which may collect garbage
            self._thread.join()
        for line in self._lines:
            line.close()
        self._lines = []

    def _serve(self) -> None:
        with self._socket:
            while True:
                try:
                    line, _ = self._socket.accept()
                except OSError:  # the door was closed
                    return
                if _user_of(line) != os.geteuid():
                    line.close()
                    continue
                try:
                    socket.send_fds(line, [b"\0"], [self._file])
                except OSError:  # that process has ended since
                    line.close()
                    continue
                self._lines.append(line)


def reach_door(number: int, timeout_s: float) -> tuple[int, socket.socket]:
    """Return the descriptor of the file behind a door, and a line that ends with the door's process.

    Args:
        timeout_s: seconds to wait for the door.

    Raises:
        ForeignConnection: the door is another user's.
        TimeoutError: there is no door of this number.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        line = socket.socket(socket.AF_UNIX)
        try:
            line.settimeout(max(deadline - time.monotonic(), AGAIN_S))
            line.connect(_name(number))
            if (user := _user_of(line)) != os.geteuid():
                raise ForeignConnection(
                    f"expected that a process of this run (user {os.geteuid()}) opens meeting {number}, got one of "
                    f"user {user}. Start the run again with another MASTER_PORT",
                    code="weights/foreign-connection",
                )
            _, files, *_ = socket.recv_fds(line, 1, 1)
            if files:
                os.set_inheritable(files[0], False)
                line.settimeout(None)
                return files[0], line
        except (ConnectionError, TimeoutError):
            pass  # not open yet, or closing
        except BaseException:
            line.close()
            raise
        line.close()
        if time.monotonic() > deadline:
            raise TimeoutError(f"nobody opened meeting {number} within {timeout_s:g} s")
        time.sleep(AGAIN_S)


def has_ended(line: socket.socket) -> bool:
    """Return whether the process at the far end of a line has ended, or closed its door."""
    try:
        return not line.recv(1, socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
    except OSError:
        return True


def _name(number: int) -> str:
    return f"\0rlhf-meeting-{os.geteuid()}-{number}"


def _user_of(line: socket.socket) -> int:
    found = line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(found)[1])
