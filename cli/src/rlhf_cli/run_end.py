"""Why a run ended before its last step, as its folder says."""

from __future__ import annotations

import fcntl
import re
import tomllib
from pathlib import Path

from rlhf_core.storage.run_folder import LOCK, RunFolder

from .records import METRICS, records_of

_RECORD = re.compile(r"\d{4}-\d\d-\d\d [\d:,]+ [A-Z]+ (\S+): (.*)")
"""A record of ``run.log``, with the name of its logger; lines of a traceback are none."""
_FAILED = "the run failed: "


def end_of(run: Path) -> str | None:
    """Return who or what ended a run before its last step, why and after which step, or that it is not known; None
    where nothing did, or it went on.

    Raises:
        ConfigError: a line of ``metrics.jsonl`` is no JSON object with a step.
    """
    path = run / METRICS
    end, step = None, 0
    for line in records_of(path) if path.is_file() else ():
        if "end" in line:
            end, step = f"the run was {line['end']}, after step {line['step']}", line["step"]
        elif line["step"] > step:
            end, step = None, line["step"]
    return end or _failure(RunFolder(run).log, step) or _left(RunFolder(run), step)


def _failure(log: Path, step: int) -> str | None:
    """Return why the run failed; None if it did not, or went on: whoever records the failure has recorded more since.

    Args:
        step: the last step that has finished.
    """
    if not log.is_file():
        return None
    logger = reason = None
    with log.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            found = _RECORD.match(line)
            if found is None:
                continue
            if found[2].startswith(_FAILED):
                logger, reason = found[1], found[2].removeprefix(_FAILED)
            elif found[1] == logger:
                reason = None
    return None if reason is None else f"the run failed {_when(step)}: {reason}\n{log} has more"


def _left(folder: RunFolder, step: int) -> str | None:
    """Return that a run with a step left to do is done by no process; None if one does it, or it may have finished."""
    try:
        with (folder.root / LOCK).open(encoding="utf-8") as lock, folder.config.open("rb") as file:
            config = tomllib.load(file)
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except (OSError, ValueError):  # one is missing or damaged, or a process holds the lock
        return None
    last = config.get("train", {}).get("steps")
    exports = config.get("checkpoint", {}).get("export", last is None)
    if folder.model.exists() or (last is None and not exports) or last == step:
        return None
    then = folder.no_checkpoint() or "Its command with --resume auto continues it."
    return f"the run was stopped or killed {_when(step)}, for no process is in it. {then}"


def _when(step: int) -> str:
    return f"after step {step}" if step else "before its first step had finished"
