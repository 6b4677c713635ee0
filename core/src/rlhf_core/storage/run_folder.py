"""The run folder: the paths of its files, and the lock that lets only one process write into it."""

from __future__ import annotations

import fcntl
import os
import re
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from ..errors import ConfigError
from ..outside.json_reader import BrokenJson, parse_object

LOCK = ".lock"
_CHECKPOINT = re.compile(r"step-\d{8,}")
_KINDS = (
    (stat.S_ISREG, "a file"),
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)
MEDIA = "media"
"""Name of the folder of a run's images."""
AUTO = "auto"
"""``--resume auto``: the newest checkpoint of the run folder."""
RESTART = "restart"
"""``--resume restart``: no checkpoint; the files of the run that was in the folder are kept beside the new ones."""
EARLIER = "earlier-"
"""Beginning of the names of folders with the files of runs that were begun anew."""


@dataclass(frozen=True, slots=True)
class RunFolder:
    """Paths of one run's files."""

    root: Path

    @property
    def config(self) -> Path:
        return self.root / "config.toml"

    @property
    def plugins(self) -> Path:
        return self.root / "plugins.json"

    @property
    def metrics(self) -> Path:
        return self.root / "metrics.jsonl"

    @property
    def rows(self) -> Path:
        """The rows that were drawn of ``data.source``, where a command goes over them more than once."""
        return self.root / "rows.jsonl"

    @property
    def samples(self) -> Path:
        return self.root / "samples.jsonl"

    @property
    def eval_samples(self) -> Path:
        return self.root / "eval_samples.jsonl"

    @property
    def ledger(self) -> Path:
        return self.root / "ledger.jsonl"

    @property
    def records(self) -> tuple[Path, ...]:
        """The files whose extent every checkpoint stores."""
        return self.metrics, self.samples, self.eval_samples, self.ledger

    @property
    def log(self) -> Path:
        return self.root / "run.log"

    @property
    def checkpoints(self) -> Path:
        return self.root / "checkpoints"

    @property
    def model(self) -> Path:
        return self.root / "model"

    @property
    def media(self) -> Path:
        """Images that the run read, by content."""
        return self.root / MEDIA

    @property
    def ema_model(self) -> Path:
        return self.root / "model_ema"

    def is_used(self) -> bool:
        """True when a run has started here before."""
        return os.path.lexists(self.metrics) or os.path.lexists(self.checkpoints)

    def no_checkpoint(self) -> str:
        """Return the reason why ``--resume auto`` cannot go on with the run that was here, if steps of it are recorded
        and no checkpoint is there; else an empty text."""
        if complete(self.checkpoints) or not os.path.isfile(self.metrics):
            return ""
        with self.metrics.open("rb") as file:
            steps = max((_step_of(line) for line in file), default=0)
        if not steps:
            return ""
        return (
            f"{self.root}: expected a checkpoint to continue from; the run that was here did {steps} "
            f"{'steps' if steps > 1 else 'step'} and left none. --resume {RESTART} starts over and keeps its files in "
            "a folder beside the new ones; or choose another --output."
        )

    def set_run_aside(self) -> Path | None:
        """Move the files of the run that was here into a folder beside them, and return it; None: there was none.

        The log and the images stay: the new run goes on with them.
        """
        names = (*self.records, self.config, self.plugins, self.checkpoints)
        return self.set_aside((*names, self.model, self.ema_model))

    def set_aside(self, paths: Iterable[Path]) -> Path | None:
        """Move what is there of some paths into a folder beside them, and return it; None: nothing is there."""
        found = [path for path in paths if os.path.lexists(path)]
        if not found:
            return None
        number = 1 + sum(1 for _ in self.root.glob(f"{EARLIER}*"))
        earlier = self.root / f"{EARLIER}{number}"
        earlier.mkdir()
        for path in found:
            path.rename(earlier / path.name)
        return earlier

    def problems(self) -> Iterator[str]:
        """Yield a message for each path of the run at which something else stands, such as a FIFO, which would hang."""
        root = _kind(self.root)
        if root not in ("", "a folder"):
            yield f"expected a folder; {self.root} is {root}"
            return
        files = (*self.records, self.config, self.plugins, self.log, self.root / LOCK)
        for paths, wanted in (
            (files, "a file"),
            ((self.checkpoints, self.model, self.ema_model, self.media), "a folder"),
        ):
            for path in paths:
                if _kind(path) not in ("", wanted):
                    yield f"expected {wanted}; {path} is {_kind(path)}. Move it away"


def is_checkpoint(folder: Path) -> bool:
    """Return whether a folder has the name of a finished checkpoint."""
    return _CHECKPOINT.fullmatch(folder.name) is not None


def complete(root: Path) -> list[Path]:
    """Return the folders of finished checkpoints, oldest first; their content is not checked."""
    return sorted(path for path in root.glob("step-*") if is_checkpoint(path))


def _step_of(line: bytes) -> int:
    """Return the step of a line of records; 0 for one that a kill has cut off."""
    try:
        step = parse_object(line).get("step")
    except BrokenJson:
        return 0
    return step if type(step) is int else 0


def _kind(path: Path) -> str:
    """Return the kind of thing at a path: ``a file``, ``a folder``, ...; empty when nothing is there."""
    try:
        mode = os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return "a link to nothing" if os.path.islink(path) else ""
    except (OSError, ValueError) as error:
        return f"a name that cannot be looked up ({getattr(error, 'strerror', None) or error})"
    return next((name for test, name in _KINDS if test(mode)), "neither a file nor a folder")


def claim(folder: RunFolder, *, resume: bool) -> IO[str]:
    """Create the folder and lock it for this process; the lock lasts until the returned file is closed.

    Raises:
        ConfigError: a run is there already and ``resume`` is not set, another process holds the lock, or the folder
            cannot be created.
    """
    for problem in folder.problems():
        raise ConfigError(f"--output {folder.root}: {problem}.", code="output/cannot-create")
    if folder.is_used() and not resume:
        raise ConfigError(
            f"--output {folder.root}: a run is there already. "
            "Add --resume auto to continue it, or choose another folder.",
            code="output/run-exists",
        )
    try:
        folder.root.mkdir(parents=True, exist_ok=True)
        lock = (folder.root / LOCK).open("w", encoding="utf-8")
    except (OSError, ValueError) as error:  # ValueError: a name with a NUL
        raise ConfigError(
            f"--output {folder.root}: the run folder cannot be created: {error}",
            code="output/cannot-create",
        ) from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        raise ConfigError(
            f"--output {folder.root}: another process is running in it. Wait for its end, or choose another folder.",
            code="output/in-use",
        ) from None
    return lock
