"""A folder for the temporary files and sockets of vLLM's processes, which vLLM leaves behind where one is killed."""

from __future__ import annotations

import getpass
import os
import re
import shutil
import tempfile

from rlhf_core.storage import temporary_folder

from .names import SOCKETS_VARIABLE

VLLMS_VARIABLE = "VLLM_RPC_BASE_PATH"
"""vLLM's variable for the folder."""
LONGEST = 107
"""Bytes that the path of a Unix socket may have."""
NAME = 1 + len("rlhf-vllm-12345678") + 1 + 36
"""Characters of the folder's name and of a socket's in it, which is a UUID."""


class SocketFolder:
    """The folder, of mode 0700. Where the user has named one for vLLM's sockets, that is used, and nothing is made."""

    def __init__(self) -> None:
        self._path = ""

    def make(self) -> dict[str, str]:
        """Make the folder, and return the variables that name it to vLLM's processes."""
        if VLLMS_VARIABLE in os.environ:
            return {}
        above = temporary_folder()
        if len(os.fsencode(above)) + NAME > LONGEST:
            above = "/tmp"
        self._path = tempfile.mkdtemp(prefix="rlhf-vllm-", dir=above)
        named = {VLLMS_VARIABLE: self._path, SOCKETS_VARIABLE: self._path, "TMPDIR": self._path}
        return named | _compiled_code()

    def remove(self) -> None:
        """Remove the folder. A second call does nothing."""
        if self._path:
            shutil.rmtree(self._path, ignore_errors=True)
        self._path = ""


def _compiled_code() -> dict[str, str]:
    """Return the variable for torch's cache of compiled code: where it is by default, since it outlives a run."""
    variable = "TORCHINDUCTOR_CACHE_DIR"
    try:
        user = re.sub(r'[\\/:*?"<>|]', "_", getpass.getuser())
    except (KeyError, OSError):  # a user without a name, as in some containers
        user = str(os.getuid())
    default = os.path.join(tempfile.gettempdir(), f"torchinductor_{user}")
    return {variable: os.environ.get(variable, default)}
