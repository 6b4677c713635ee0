"""Results that are there: what an error in the middle of the work says of them, and where they go for others."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from rlhf_core import RewardError, RLHFError, RolloutError
from rlhf_core.contracts import RunResult
from rlhf_trainer.inference import RunFolder

log = logging.getLogger(__name__)


def set_results_aside(folder: RunFolder, names: Iterable[str], contents: str) -> None:
    """Move the files of what was here into a folder beside the new ones, and say where they are.

    Args:
        names: of the files, those that are not there included.
        contents: name of what they hold, in the plural.
    """
    if earlier := folder.set_aside(folder.root / name for name in names):
        # A warning, since these commands show no other lines of a log.
        log.warning("starts over; the %s that were here are kept in %s", contents, earlier)


def ended(
    status: Literal["finished", "interrupted"], done: int, begin: float, message: str = ""
) -> RunResult:
    """Return how the work ended, which began at a time of the monotonic clock, with so many items done in all."""
    seconds = time.monotonic() - begin
    return RunResult(status=status, steps=done, seconds=seconds, message=message)


@contextmanager
def results_are_kept(path: Path, items: str, going_on: str) -> Iterator[None]:
    """Add to an error of the body where the finished items are, and what goes on with them.

    Args:
        path: their file.
        items: what they are, in the plural.
        going_on: sentence that says how to go on, without a full stop.

    Raises:
        RewardError, RolloutError: as the body raised it, with the line in its message. Another exception but those of
            a wrong start gets the line as a note.
    """
    line = f"The {items} that were finished are in {path}; {going_on}."
    try:
        yield
    except (RewardError, RolloutError) as error:
        raise error.with_text(f"{error}\n  {line}") from error
    except RLHFError:
        raise
    except Exception as error:
        if path.exists():
            error.add_note(line)
        raise
