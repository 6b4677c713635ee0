"""A folder for the sockets between vLLM's processes, which vLLM itself leaves behind among temporary files."""

from __future__ import annotations

import os
import shutil
import tempfile

from .names import SOCKETS_VARIABLE

VLLMS_VARIABLE = "VLLM_RPC_BASE_PATH"
"""vLLM's variable for the folder."""
LONGEST = 107
"""Bytes that the path of a Unix socket may have."""
NAME = 1 + len("rlhf-vllm-12345678") + 1 + 36
"""Characters of the folder's name and of a socket's in it, which is a UUID."""


class SocketFolder:
    """The folder, of mode 0700. Where the user has named one for vLLM, that is used, and nothing is made or removed."""

    def __init__(self) -> None:
        self._path = ""

    def make(self) -> dict[str, str]:
        """Make the folder, and return the variables that name it to vLLM's processes."""
        if VLLMS_VARIABLE in os.environ:
            return {}
        above = tempfile.gettempdir()
        if len(os.fsencode(above)) + NAME > LONGEST:
            above = "/tmp"
        self._path = tempfile.mkdtemp(prefix="rlhf-vllm-", dir=above)
        return {VLLMS_VARIABLE: self._path, SOCKETS_VARIABLE: self._path}

    def remove(self) -> None:
        """Remove the folder. A second call does nothing."""
        if self._path:
            shutil.rmtree(self._path, ignore_errors=True)
        self._path = ""
