"""Images that the episodes of a run draw, kept within a size: the oldest go that no sample in work needs.

A link to a file takes no room and stays. What goes is what environments and agents drew, and images that rows hold in
themselves: those are written again when their task is made again.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

log = logging.getLogger(__name__)

GIB = 2**30


class _Entry(NamedTuple):
    used: float
    """Time of the last use, in seconds since the epoch."""
    num_bytes: int
    path: str


class DrawnImages:
    """Images in a run's store that are files, not links.

    Args:
        folder: that of the store.
        most_bytes: bytes of all together.
        num_steps: steps, the one that ended last included, whose samples may still be in work.
    """

    def __init__(self, folder: Path, most_bytes: float, num_steps: int) -> None:
        self._folder = folder
        self._most_bytes = most_bytes
        self._begun: deque[float] = deque(maxlen=num_steps)
        self._warned = False

    def step_begins(self) -> None:
        """Note that what is drawn from now on is of another step."""
        self._begun.append(time.time())

    def clean(self) -> int:
        """Remove the images that were not used for the longest time until the others fit, but for those that samples in
        work may need, and return the number of bytes that are left."""
        entries = sorted(self._entries())
        total = sum(entry.num_bytes for entry in entries)
        in_work = self._begun[0] if self._begun else 0.0
        for entry in entries:
            if total <= self._most_bytes or entry.used >= in_work:
                break
            with contextlib.suppress(FileNotFoundError):
                # It may have been used since it was looked at.
                if _used(os.stat(entry.path)) < in_work:
                    os.unlink(entry.path)
                    total -= entry.num_bytes
        if total > self._most_bytes and not self._warned:
            self._warned = True
            log.warning(
                "%s: the images of samples in work take %.1f GiB, more than --rollout.drawn_images_gib %g, and stay "
                "until they are trained. Draw smaller images, or raise the limit.",
                self._folder,
                total / GIB,
                self._most_bytes / GIB,
            )
        return total

    def _entries(self) -> Iterator[_Entry]:
        with contextlib.suppress(FileNotFoundError):  # nothing was drawn yet
            for folder in os.scandir(self._folder):
                for file in os.scandir(folder) if folder.is_dir() else ():
                    with contextlib.suppress(FileNotFoundError):
                        if not file.is_symlink() and file.is_file():
                            facts = file.stat()
                            yield _Entry(_used(facts), facts.st_size, file.path)


def _used(facts: os.stat_result) -> float:
    return max(facts.st_atime, facts.st_mtime)
