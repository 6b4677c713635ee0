"""Log messages of a rank's set-up and updates, which the driver logs again, since the run's log is the driver's."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from rlhf_core.plugins import Plugins

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogMessage:
    """One log message."""

    level: int
    """Level as in ``logging``."""
    message: str
    """Text with its arguments filled in."""


class _Collector(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.messages: list[LogMessage] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(LogMessage(level=record.levelno, message=record.getMessage()))


@contextmanager
def listening(plugins: Plugins) -> Iterator[list[LogMessage]]:
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
            yield collector.messages
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.removeHandler(collector)
                logger.setLevel(level)
    except Exception:
        for line in collector.messages:
            log.log(line.level, "%s", line.message)
        raise


def log_ranks(by_rank: Sequence[Sequence[LogMessage]], names: Sequence[str]) -> None:
    """Log the messages of a role's ranks in this process.

    All ranks of a role log the same messages, so only the first rank's are logged below level WARNING.

    Args:
        by_rank: messages of each rank.
        names: name of each rank in messages.
    """
    for rank, (messages, name) in enumerate(zip(by_rank, names, strict=True)):
        for line in messages:
            if rank == 0 or line.level > logging.INFO:
                log.log(line.level, "%s: %s", name, line.message)
