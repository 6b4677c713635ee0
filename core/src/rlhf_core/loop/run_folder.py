"""The run folder: who may write into it, and where its parts are."""

from __future__ import annotations

import fcntl
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from ..errors import ConfigError


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
    def samples(self) -> Path:
        return self.root / "samples.jsonl"

    @property
    def ledger(self) -> Path:
        return self.root / "ledger.jsonl"

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
    def ema_model(self) -> Path:
        return self.root / "model_ema"

    def is_used(self) -> bool:
        """True when a run has started here before."""
        return self.metrics.exists() or self.checkpoints.exists()


def claim(folder: RunFolder, *, resume: bool) -> IO[str]:
    """Create the folder and lock it for this process; the lock lasts until the returned file is closed.

    Raises:
        ConfigError: a run is there already and ``resume`` is not set, another process is running in it, or it
            cannot be created.
    """
    if folder.is_used() and not resume:
        raise ConfigError(
            f"--output {folder.root}: a run is there already. "
            "Add --resume auto to go on with it, or choose another folder."
        )
    try:
        folder.root.mkdir(parents=True, exist_ok=True)
        lock = (folder.root / ".lock").open("w", encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"--output {folder.root}: the run folder cannot be created: {error}"
        ) from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        raise ConfigError(f"--output {folder.root}: another process is running in it") from None
    return lock
