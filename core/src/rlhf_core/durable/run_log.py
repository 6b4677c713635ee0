"""The run's log: the records of the core's and the plugins' loggers go into ``run.log``, from level INFO on.

Warnings are still printed. Python's handler of last resort prints them only while a logger has no handler, so it is
added beside the one for the file.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..plugins import Plugins

FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class Notes(logging.Handler):
    """Handler that keeps messages of level INFO until they are taken, and none from then on."""

    def __init__(self) -> None:
        super().__init__()
        self._messages: list[str] | None = []

    def emit(self, record: logging.LogRecord) -> None:
        if self._messages is not None and record.levelno == logging.INFO:
            self._messages.append(record.getMessage())

    def taken(self) -> tuple[str, ...]:
        """Return the messages so far."""
        messages, self._messages = self._messages, None
        return tuple(messages or ())


@contextmanager
def run_log(path: Path, plugins: Plugins) -> Iterator[Notes]:
    """Append the log records of the body to ``path``; at its end, levels and handlers are as before."""
    notes = Notes()
    file = logging.FileHandler(path, encoding="utf-8")
    file.setFormatter(logging.Formatter(FORMAT))
    handlers: list[logging.Handler] = [file, notes]
    if not logging.getLogger().handlers and logging.lastResort is not None:
        handlers.append(logging.lastResort)
    loggers = plugins.loggers()
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        if logger.getEffectiveLevel() > logging.INFO:
            logger.setLevel(logging.INFO)
        for handler in handlers:
            logger.addHandler(handler)
    try:
        yield notes
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
            for handler in handlers:
                logger.removeHandler(handler)
        file.close()
