"""The run's log: the records of the core's and the plugins' loggers go into ``run.log``, from level INFO on.

Warnings are still printed. Python's handler of last resort prints them only while a logger has no handler, so it is
added beside the one for the file.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from rlhf_core.plugins import Plugins

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


class _LogFile(logging.FileHandler):
    """Handler of the file, which says once that it cannot be written to: a run does not depend on its log."""

    _said = False

    def handleError(self, record: logging.LogRecord) -> None:
        failure = sys.exc_info()[1]
        if not isinstance(failure, OSError):
            super().handleError(record)
        elif not self._said:
            self._said = True
            print(f"{self.baseFilename} cannot be written to: {failure.strerror}", file=sys.stderr)

    def close(self) -> None:
        with suppress(OSError):  # what is left to write has no room, which was said
            super().close()


@contextmanager
def run_log(path: Path, plugins: Plugins) -> Iterator[Notes]:
    """Append the log records of the body to ``path``; at its end, levels and handlers are as before."""
    notes = Notes()
    file = _LogFile(path, encoding="utf-8")
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
