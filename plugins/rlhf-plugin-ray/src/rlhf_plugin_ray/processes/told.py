"""Log messages of a rank's set-up and updates, which the driver logs again, since the run's log is the driver's."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from rlhf_core.plugins import Plugins

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """One log message."""

    level: int
    """Level as in ``logging``."""
    message: str
    """Text with its arguments filled in."""


class _Collector(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.told: list[Told] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.told.append(Told(level=record.levelno, message=record.getMessage()))


@contextmanager
def listening(plugins: Plugins) -> Iterator[list[Told]]:
    """Yield a list that collects the messages, from level INFO on, that the core and the plugins log in the body.

    A body that fails has nobody who gets the list, so its messages are then logged here.
    """
    collector, loggers = _Collector(), plugins.loggers()
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.addHandler(collector)
        if logger.getEffectiveLevel() > logging.INFO:
            logger.setLevel(logging.INFO)
    try:
        try:
            yield collector.told
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.removeHandler(collector)
                logger.setLevel(level)
    except Exception:
        for line in collector.told:
            log.log(line.level, "%s", line.message)
        raise


def tell(by_rank: Sequence[Sequence[Told]], names: Sequence[str]) -> None:
    """Log the messages of a role's ranks in this process.

    All ranks of a role log the same messages, so only the first rank's are logged below level WARNING.

    Args:
        by_rank: messages of each rank.
        names: name of each rank in messages.
    """
    for rank, (told, name) in enumerate(zip(by_rank, names, strict=True)):
        for line in told:
            if rank == 0 or line.level > logging.INFO:
                log.log(line.level, "%s: %s", name, line.message)
