"""Loggers, which copy a run's metrics and samples to a service or a store outside the run folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from ..observer import RolloutSample, RunInfo, RunResult


class Logger(Protocol):
    """Copies one run to another place. The factory is called in the driver as ``factory(config)``.

    The factory starts nothing and contacts no server, because ``--check`` calls it too. It raises ``ConfigError`` if
    something is missing, such as a key in the environment. Keys are never options, because options are recorded and
    logged.

    The methods are called in order, on a thread that belongs to this logger alone, so a slow one delays no step. An
    exception in one of them is logged and switches the logger off; no further method is called. The run waits for its
    loggers only at its end, for at most ``log.wait_s``.
    """

    def start(self, run: RunInfo) -> None:
        """Begin a run, or continue the run that an earlier process began in the folder ``run.output``.

        Keep the run's id at the service in that folder. A process that was killed may already have logged steps after
        ``run.start_step``; they are logged again, with equal values except for times.

        Args:
            run: ``config`` has no credentials in its URLs.
        """

    def log_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Log a step's metrics, or those of an evaluation after it.

        Args:
            step: never falls within one process; an evaluation has the step after which it was made, 0 before the
                first.
            metrics: names such as ``reward/mean``, ``timing/step_s`` and ``eval/test/T0/pass@1``. Values may be NaN or
                infinite.
        """

    def log_samples(self, step: int, samples: Sequence[RolloutSample]) -> None:
        """Log a few rollouts of a step, before the step's metrics; called every ``log.samples_every`` steps."""

    def finish(self, result: RunResult) -> None:
        """Record how the run ended, and send everything that is not sent yet."""
