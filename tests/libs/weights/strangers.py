"""A program of another user of this machine, who can be made by root alone."""

import os
import subprocess
import sys
from contextlib import contextmanager

import pytest

STRANGER = 65534
needs_root = pytest.mark.skipif(
    sys.platform != "linux" or os.geteuid() != 0, reason="only root can become another user"
)


@contextmanager
def stranger(code):
    """Another user's process, whose code says ``print("ready")`` at first; it ends with the context."""
    become = f"import encodings.idna, os, socket\nos.setgroups([])\nos.setuid({STRANGER})\n"
    with subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", become + code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()
