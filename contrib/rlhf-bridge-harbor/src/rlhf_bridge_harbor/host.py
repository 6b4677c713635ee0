"""A sandbox of this machine: a folder that is the root of what commands see, with this machine's programs read-only.

Each command has processes of its own (``inside``); nothing but files is left of one when it ends. There is no network.
"""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from rlhf_core import DataError, RolloutError
from rlhf_tools.sandbox.inside.starting import command_of
from rlhf_tools.sandbox.removal import remove_folder

from . import inside
from .config import HarborConfig
from .dockerfiles import read_recipe
from .folders import HarborFolder
from .machine import Ran, bounded_output

_LOG = logging.getLogger(__name__)

_SYSTEM = (
    "/usr", "/bin", "/sbin", "/lib", "/lib64", "/lib32", "/etc/ld.so.cache", "/etc/alternatives", "/etc/ssl",
    "/etc/localtime", "/etc/passwd", "/etc/group", "/etc/nsswitch.conf",
)  # fmt: skip
_FOLDERS = ("dev", "proc", "etc", "tmp", "root", "logs/agent", "logs/verifier")
_VARIABLES = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/root",
    "LANG": "C.UTF-8",
    "TERM": "dumb",
}
_END_S = 5.0
_WARNED: set[Path] = set()


class HostMachine:
    """A sandbox for one episode.

    Raises:
        DataError: the task's Dockerfile cannot be read.
    """

    def __init__(self, task: HarborFolder, config: HarborConfig) -> None:
        self._task, self._config = task, config
        self._recipe = read_recipe(task.dockerfile)
        self._workdir = task.workdir or self._recipe.workdir or "/app"
        self._folder: Path | None = None

    async def start(self) -> None:
        """Make the root: empty but for what the Dockerfile copies."""
        if sys.platform != "linux":
            raise RolloutError(
                f"the sandbox needs Linux; this is {sys.platform}. Give an engine",
                code="sandbox/unavailable",
            )
        if self._recipe.left_out and self._task.path not in _WARNED:
            _WARNED.add(self._task.path)
            lines = "; ".join(self._recipe.left_out)
            _LOG.warning(
                "%s runs in this machine's sandbox without: %.500s", self._task.label, lines
            )
        self._folder = Path(await asyncio.to_thread(tempfile.mkdtemp, prefix="rlhf-harbor-"))
        await asyncio.to_thread(self._fill, self._root)

    async def run(
        self, command: str, seconds: float, variables: Mapping[str, str], most: int
    ) -> Ran:
        """Run a command; everything that it started is gone when this returns or raises."""
        process = await asyncio.create_subprocess_exec(
            *command_of(sys.executable, inside),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={},
            start_new_session=True,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        settings = json.dumps(self._settings(command, variables)).encode()
        process.stdin.write(b"%d\n%s" % (len(settings), settings))
        reading = asyncio.ensure_future(bounded_output(process.stdout, 4 * most))
        saying = asyncio.ensure_future(process.stderr.read())
        ended = asyncio.gather(reading, saying, process.wait())
        is_late = False
        try:
            await asyncio.wait_for(asyncio.shield(ended), seconds)
        except TimeoutError:
            is_late = True
        finally:
            process.stdin.close()  # The supervisor then kills everything that is left.
            await asyncio.shield(_ended(process, ended))
        output, is_cut = reading.result()
        said = saying.result().decode(errors="replace")
        if process.returncode == inside.BROKEN and said.startswith("sandbox: "):
            raise RolloutError(
                f"this machine's sandbox could not be built ({said.strip():.500}). It needs namespaces of users, which "
                "some machines and most containers refuse; give an engine instead",
                code="sandbox/unavailable",
            )
        text = output.decode(errors="replace")
        return Ran(
            output=text[:most],
            status=process.returncode if process.returncode is not None else -1,
            is_cut=is_cut or len(text) > most,
            is_late=is_late,
        )

    async def place_tests(self, tests: Path) -> None:
        """Put the verifier in its place; no process of the policy is there any more."""
        await asyncio.to_thread(self._place, tests)

    async def reward_file(self, name: str, most: int) -> bytes | None:
        """Return a file of the verifier's. Links are not followed: what runs there may have made one to anywhere."""
        return await asyncio.to_thread(_read_plain, self._root, ("logs", "verifier", name), most)

    async def close(self) -> None:
        """Remove the root."""
        folder, self._folder = self._folder, None
        if folder is not None:
            await asyncio.to_thread(remove_folder, folder)

    @property
    def _root(self) -> Path:
        assert self._folder is not None
        return self._folder / "root"

    def _fill(self, root: Path) -> None:
        for name in (*_FOLDERS, self._workdir.lstrip("/")):
            (root / name).mkdir(parents=True, exist_ok=True)
        context = self._task.path / "environment"
        for source, target in self._recipe.copies:
            _copy(context, source, root, target, self._task.label)

    def _place(self, tests: Path) -> None:
        for name in ("tests", "logs"):
            path = self._root / name
            if path.is_dir() and not path.is_symlink():
                remove_folder(path)
            else:
                path.unlink(missing_ok=True)
        shutil.copytree(tests, self._root / "tests")
        (self._root / "logs" / "verifier").mkdir(parents=True)

    def _settings(self, command: str, variables: Mapping[str, str]) -> dict[str, object]:
        mib = 1 << 20
        return {
            "command": command,
            "root": str(self._root),
            "workdir": self._workdir,
            "readable": [
                path for path in (*_SYSTEM, *self._config.readable) if os.path.lexists(path)
            ],
            "processes": self._config.processes,
            "variables": {**_VARIABLES, **self._recipe.variables, **variables},
            "limits": {
                "RLIMIT_AS": self._task.memory_mib * mib,
                "RLIMIT_FSIZE": self._config.file_mib * mib,
                "RLIMIT_NPROC": self._config.processes,
                "RLIMIT_NOFILE": 1024,
                "RLIMIT_CORE": 0,
            },
        }


async def _ended(process: asyncio.subprocess.Process, ended: asyncio.Future[Any]) -> None:
    """Wait for a supervisor that was told to end; kill one that does not, and with it all that it watches."""
    try:
        await asyncio.wait_for(asyncio.shield(ended), _END_S)
    except TimeoutError:
        with suppress(ProcessLookupError):
            process.kill()
        await ended


def _copy(context: Path, source: str, root: Path, target: str, label: str) -> None:
    found = (context / source.lstrip("/")).resolve()
    if not found.is_relative_to(context.resolve()) or not found.exists():
        raise DataError(
            f"{label}: environment/Dockerfile copies {source!r}; expected a path beside it",
            code="environment/copies-from-outside",
        )
    into = root / target.strip("/")
    if found.is_dir():
        shutil.copytree(found, into, dirs_exist_ok=True, symlinks=True)
        return
    if target.endswith("/") or into.is_dir():
        into = into / found.name
    into.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy2(found, into)


def _read_plain(root: Path, parts: tuple[str, ...], most: int) -> bytes | None:
    held = os.open(root, os.O_PATH | os.O_DIRECTORY)
    try:
        for index, part in enumerate(parts):
            kind = (
                os.O_RDONLY | os.O_NONBLOCK
                if index == len(parts) - 1
                else os.O_PATH | os.O_DIRECTORY
            )
            try:
                following = os.open(part, kind | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=held)
            except OSError as error:
                if error.errno in (errno.ENOENT, errno.ELOOP, errno.ENOTDIR, errno.EACCES):
                    return None
                raise
            os.close(held)
            held = following
        if not stat.S_ISREG(os.fstat(held).st_mode):
            return None
        read = b""
        while len(read) <= most and (part_read := os.read(held, most + 1 - len(read))):
            read += part_read
        return read
    finally:
        os.close(held)
