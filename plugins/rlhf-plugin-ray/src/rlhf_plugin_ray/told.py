"""What the process of a rank logs while it is set up, told to the driver: that is where the run's log is."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from rlhf_core.plugins import Plugins

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """One message."""

    level: int
    message: str


class _Collector(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.told: list[Told] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.told.append(Told(level=record.levelno, message=record.getMessage()))


@contextmanager
def listening(plugins: Plugins) -> Iterator[list[Told]]:
    """Collect what the core and the plugins log in the body, from level INFO on, in place of printing it."""
    collector, loggers = _Collector(), plugins.loggers()
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.addHandler(collector)
        if logger.getEffectiveLevel() > logging.INFO:
            logger.setLevel(logging.INFO)
    try:
        yield collector.told
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.removeHandler(collector)
            logger.setLevel(level)


def tell(by_rank: Sequence[Sequence[Told]], names: Sequence[str]) -> None:
    """Log it here. All ranks of a role say the same, so only warnings are repeated for each.

    Args:
        names: how messages call the ranks.
    """
    for rank, (told, name) in enumerate(zip(by_rank, names, strict=True)):
        for line in told:
            if rank == 0 or line.level > logging.INFO:
                log.log(line.level, "%s: %s", name, line.message)
