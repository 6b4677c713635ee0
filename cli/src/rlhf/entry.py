"""``train``, ``start`` and ``describe``: options from Python to a run, or to the text of one."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rlhf_core import ConfigError, RLHFError
from rlhf_core.config import Resolved, check_installed, check_paths, path_problems, resolve
from rlhf_core.contracts import RunResult
from rlhf_core.loop.control import Control
from rlhf_core.plugins import Plugins, load

from .callbacks import StepRecorder, add_callback
from .display import NotebookView, notebook
from .options import Given, PythonOptions
from .result import TrainingResult
from .run import Run

log = logging.getLogger(__name__)

_running = threading.Lock()
"""Held by the run of this process: observers, torch's threads and the log belong to one run at a time."""


def train(
    config: Given | Sequence[Given] | None = None,
    /,
    *,
    callbacks: Iterable[Any] = (),
    **options: Any,
) -> TrainingResult:
    """Train, and return how it ended.

    Works in scripts, in notebooks (beside their event loop) and in threads. Ctrl-C, or the interrupt of a notebook's
    kernel, lets the step end, saves, and returns a result with status ``interrupted``.

    Args:
        config: path of a TOML file, a mapping, or a list of them, later ones winning.
        callbacks: functions of ``step`` and ``metrics``, or objects with methods named after observer hooks
            (``step_end``, ``eval_end``, ...). One that raises is reported once and switched off.
        options: options of ``rlhf train``, which win over ``config``: sections as mappings (``train={"steps": 10}``),
            the short names of the command line (``steps=10``), or paths (``**{"actor.adam.lr": 1e-3}``). Where a file
            names a component, a function, class or object may stand; where it names data, rows.

    Raises:
        RLHFError: an option is wrong, or the run could not start or failed. Results so far are in the run folder, and
            ``resume="auto"`` goes on from the newest checkpoint.
    """
    prepared = _Prepared(config, options, callbacks)
    if not _has_running_loop() and prepared.view is None:
        return TrainingResult.of(prepared.work(None), prepared.output)
    with prepared.run() as run:
        run.finish()
    return run.result


def start(
    config: Given | Sequence[Given] | None = None,
    /,
    *,
    callbacks: Iterable[Any] = (),
    **options: Any,
) -> Run:
    """Return a run that is done step by step. Arguments are those of ``train``.

        with rlhf.start("run.toml", reward=score) as run:
            for step in run:
                if step.metrics["policy/entropy"] < 0.1:
                    run.set_learning_rate(1e-6)

    Nothing is built before the first step. Leaving the context ends the run and saves what is not saved.
    """
    return _Prepared(config, options, callbacks).run()


def describe(config: Given | Sequence[Given] | None = None, /, **options: Any) -> str:
    """Return what a run with these options would build, as ``rlhf train --dry-run`` prints it. Writes nothing.

    Raises:
        RLHFError: an option is wrong.
    """
    from rlhf_core.loop.describe import describe as describe_run

    plugins = load()
    given, resolved = _resolved(config, options, plugins)
    lines = [describe_run(resolved, plugins)]
    lines += [f"not ready to run: {problem}" for problem in _problems(given, resolved)]
    return "\n".join(lines)


def _resolved(
    config: Given | Sequence[Given] | None, options: Mapping[str, Any], plugins: Plugins
) -> tuple[PythonOptions, Resolved]:
    given = PythonOptions(config, options, plugins, in_notebook=notebook() is not None)
    return given, resolve(given.layers, plugins)


def _problems(given: PythonOptions, resolved: Resolved) -> list[str]:
    """Return a message for each file or folder that the run could not work with; given rows get their files later."""
    files = [rows.entry for rows in given.rows]
    return [
        problem
        for problem in path_problems(resolved, given.layers)
        if not any(file in problem for file in files)
    ]


def _has_running_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


class _Prepared:
    """A validated run, with its observers."""

    def __init__(
        self,
        config: Given | Sequence[Given] | None,
        options: Mapping[str, Any],
        callbacks: Iterable[Any],
    ) -> None:
        plugins = load()
        given, self._resolved = _resolved(config, options, plugins)
        for number, callback in enumerate(callbacks):
            add_callback(plugins, callback, number)
        self._plugins = plugins
        self._recorder = StepRecorder()
        for problem in _problems(given, self._resolved):
            raise ConfigError(problem)
        for failure in plugins.failed:
            log.warning("%s", str(failure).partition("\n")[0])
        if self._resolved.unused:
            log.warning(
                "not used by this run: %s (their components are not selected)",
                ", ".join(self._resolved.unused),
            )
        for rows in given.rows:
            rows.save()
        check_paths(self._resolved, given.layers)
        check_installed(self._resolved)
        self.view = NotebookView() if given.wants_view else None

    @property
    def output(self) -> Path:
        return Path(self._resolved.run.output)

    def work(self, control: Control | None) -> RunResult:
        """Do the run in this thread.

        Raises:
            RLHFError: another run of this process is under way, or the run could not start or failed.
        """
        from rlhf_core.loop.run import run  # it imports torch

        if not _running.acquire(blocking=False):
            raise RLHFError(
                "another run of this process is under way, and there can be one at a time; close it first"
            )
        try:
            return run(self._resolved, self._plugins, control)
        finally:
            _running.release()

    def run(self) -> Run:
        """Return the run as one that is done step by step."""
        self._plugins.manager.register(self._recorder, name="python:steps")
        return Run(self.work, self._resolved, self._recorder, self.view)
