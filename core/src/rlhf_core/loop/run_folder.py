"""The run folder: who may write into it, and where its parts are."""

from __future__ import annotations

import fcntl
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from ..config.layers import Layer, Words, lookup, merge
from ..config.run import RunConfig
from ..errors import ConfigError

AUTO = "auto"
"""``--resume auto``: the newest checkpoint of the run folder."""


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


def folder_to_resume(layers: Sequence[Layer]) -> RunFolder | None:
    """Return the folder whose run the options ask to go on with, before anything of them is validated."""
    values = merge(layers).values

    def written(path: str, default: str = "") -> str:
        value = lookup(values, path)
        return str(value[0]) if isinstance(value, Words) and value else str(value or default)

    wanted = written("resume.checkpoint")
    if wanted == AUTO:
        return RunFolder(Path(written("output", RunConfig.model_fields["output"].default)))
    return RunFolder(Path(wanted).parent.parent) if wanted else None


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
