"""Training commands from Python: options to a run, or to the text of one. The entries of ``rlhf train`` among them."""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rlhf_cli.runs import training_command, training_commands
from rlhf_cli.train import COMMAND
from rlhf_cli.training import (
    TrainingCommand,
    check_columns,
    check_hub,
    check_outside,
    function_of,
    say_choices,
)
from rlhf_config import (
    ResolvedOptions,
    check_installed,
    check_paths,
    path_problems,
    resolve_options,
    with_memory_options,
)
from rlhf_core import ConfigError, RLHFError
from rlhf_core.contracts import RunResult
from rlhf_core.plugins import Plugins, load
from rlhf_trainer.loop.run_kind import Control

from .callbacks import StepRecorder, add_callback
from .display import NotebookView, notebook
from .options import Given, PythonOptions
from .result import TrainingResult
from .run import Run
from .words import in_python_words

log = logging.getLogger(__name__)

_running = threading.Lock()
"""Held by the run of this process: observers, torch's threads and the log belong to one run at a time."""
_CONTROL = "control"
"""Parameter of ``TrainingCommand.run`` by which a run is steered."""


def train(
    config: Given | Sequence[Given] | None = None,
    /,
    *,
    callbacks: Iterable[Any] = (),
    **options: Any,
) -> TrainingResult:
    """Train, and return how it ended.

    Works in scripts, in notebooks (beside their event loop) and in threads. Ctrl-C, or the interrupt of a
    notebook's kernel, lets the step end, saves, and returns a result with status ``interrupted``.

    Args:
        config: path of a TOML file, a mapping, or a list of them, later ones winning.
        callbacks: functions of ``step`` and ``metrics``, or objects with methods named after observer hooks
            (``step_end``, ``eval_end``, ...). One that raises is reported once and switched off.
        options: options of ``rlhf train``, which win over ``config``: sections as mappings (``train={"steps": 10}``),
            the short names of the command line (``steps=10``), or paths (``**{"actor.adam.lr": 1e-3}``). Where a
            file names a component, a function, class or object may stand; where it names data, rows.

    Raises:
        RLHFError: an option is wrong, or the run could not start or failed. Results so far are in the run folder,
            and ``resume="auto"`` continues from the newest checkpoint.
    """
    return CallableCommand(COMMAND).train(config, callbacks=callbacks, **options)


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
    return CallableCommand(COMMAND).start(config, callbacks=callbacks, **options)


def describe(config: Given | Sequence[Given] | None = None, /, **options: Any) -> str:
    """Return what a run with these options would build, as ``rlhf train --dry-run`` prints it. Writes nothing.

    Raises:
        RLHFError: an option is wrong.
    """
    return CallableCommand(COMMAND).describe(config, **options)


class CallableCommand:
    """One command that trains, as Python functions: ``rlhf.command("sft").train(...)`` is ``rlhf sft ...``.

    Calling it is ``train``. The guarantees are those of ``rlhf.train``: the same options give the same weights, to the
    bit, from a script, a notebook and the command line.
    """

    def __init__(self, command: TrainingCommand[Any]) -> None:
        self._command = command

    @property
    def name(self) -> str:
        """The command's name, as in ``rlhf NAME``."""
        return self._command.options.command

    def __repr__(self) -> str:
        return f"<rlhf {self.name}: {self._command.options.purpose}>"

    def __call__(
        self,
        config: Given | Sequence[Given] | None = None,
        /,
        *,
        callbacks: Iterable[Any] = (),
        **options: Any,
    ) -> TrainingResult:
        """Train, and return how it ended; see ``train``."""
        return self.train(config, callbacks=callbacks, **options)

    @in_python_words()
    def train(
        self,
        config: Given | Sequence[Given] | None = None,
        /,
        *,
        callbacks: Iterable[Any] = (),
        **options: Any,
    ) -> TrainingResult:
        """Train, and return how it ended. Arguments and errors are those of ``rlhf.train``, with the command's own
        options."""
        prepared = _Prepared(self._command, config, options, callbacks)
        if not _has_running_loop() and prepared.view is None:
            return TrainingResult.of(prepared.work(None), prepared.output)
        with prepared.run() as run:
            run.finish()
        return run.result

    @in_python_words()
    def start(
        self,
        config: Given | Sequence[Given] | None = None,
        /,
        *,
        callbacks: Iterable[Any] = (),
        **options: Any,
    ) -> Run:
        """Return a run that is done step by step, as ``rlhf.start`` does.

        Raises:
            RLHFError: an option is wrong, or the command's runs cannot be steered.
        """
        return _Prepared(self._command, config, options, callbacks).run()

    @in_python_words()
    def describe(self, config: Given | Sequence[Given] | None = None, /, **options: Any) -> str:
        """Return what a run with these options would build, as ``--dry-run`` prints it. Writes nothing.

        Raises:
            RLHFError: an option is wrong.
        """
        plugins = load()
        given, resolved = _resolved(self._command, config, options, plugins)
        lines = [function_of(self._command.describe)(resolved, plugins)]
        lines += [
            f"not ready to run: {problem}" for problem in _problems(self._command, given, resolved)
        ]
        return "\n".join(lines)


def command(name: str) -> CallableCommand:
    """Return a command that trains by its name: ``rlhf.command("sft")``. ``rlhf.sft`` is the same.

    Raises:
        UnknownComponent: no installed plugin has a command of that name that trains; the message lists those there are.
    """
    return CallableCommand(training_command(name, load()))


def command_names() -> list[str]:
    """Return the names of all commands that train."""
    return list(training_commands(load()))


def _resolved(
    command: TrainingCommand[Any],
    config: Given | Sequence[Given] | None,
    options: Mapping[str, Any],
    plugins: Plugins,
) -> tuple[PythonOptions, ResolvedOptions[Any]]:
    given = PythonOptions(config, options, plugins, command, in_notebook=notebook() is not None)
    resolved = resolve_options(given.layers, plugins, command.options)
    return given, with_memory_options(resolved, given.layers, plugins, command.options)


def _problems(
    command: TrainingCommand[Any], given: PythonOptions, resolved: ResolvedOptions[Any]
) -> list[str]:
    """Return a message for each file or folder that the run could not work with; given rows get their files later."""
    files = [rows.entry for rows in given.rows]
    return [
        problem
        for problem in path_problems(resolved, given.layers, command.options)
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
        command: TrainingCommand[Any],
        config: Given | Sequence[Given] | None,
        options: Mapping[str, Any],
        callbacks: Iterable[Any],
    ) -> None:
        plugins = load()
        self._command = command
        given, self._resolved = _resolved(command, config, options, plugins)
        if not isinstance(callbacks, Iterable):
            raise ConfigError(
                f"callbacks: got {type(callbacks).__name__}; expected a list of functions or objects, such as "
                "callbacks=[watch]",
                code="observer/not-a-list",
            )
        for number, callback in enumerate(callbacks):
            add_callback(plugins, callback, number)
        self._plugins = plugins
        self._recorder = StepRecorder()
        for problem in _problems(command, given, self._resolved):
            raise ConfigError(problem, code="config/unusable-path")
        for failure in plugins.failed:
            log.warning("%s", str(failure).partition("\n")[0])
        if self._resolved.unused:
            log.warning(
                "not used by this run: %s (their components are not selected)",
                ", ".join(self._resolved.unused),
            )
        check_outside(self._resolved)
        check_installed(self._resolved)
        for rows in given.rows:
            rows.save()
        check_paths(self._resolved, given.layers, command.options)
        check_columns(self._resolved, given.layers)
        say_choices(self._resolved)
        check_hub(self._resolved, command)
        self.view = NotebookView() if given.wants_view else None

    @property
    def output(self) -> Path:
        return Path(self._resolved.run.output)

    def work(self, control: Control | None) -> RunResult:
        """Do the run in this thread.

        Raises:
            RLHFError: another run of this process is under way, or the run could not start or failed.
        """
        run = function_of(self._command.run)  # it imports torch
        steered = {} if control is None else {_CONTROL: control}
        if not _running.acquire(blocking=False):
            raise RLHFError(
                "another run of this process is under way, and there can be one at a time; close it first",
                code="run/under-way",
            )
        try:
            result: RunResult = run(self._resolved, self._plugins, **steered)
            return result
        finally:
            _running.release()

    def run(self) -> Run:
        """Return the run as one that is done step by step.

        Raises:
            ConfigError: the command's runs cannot be steered.
        """
        steers = inspect.signature(function_of(self._command.run)).parameters
        if _CONTROL not in steers:
            raise ConfigError(
                f"rlhf {self._resolved.command}: expected a command whose runs can be steered, as they are step by "
                f"step and beside an event loop; {self._command.run} takes no {_CONTROL!r}. Use train(...) in a "
                "script, or add that parameter and hand it to drive.",
                code="run/not-steerable",
            )
        self._plugins.manager.register(self._recorder, name="python:steps")
        optimizers = self._command.optimizers
        return Run(self.work, self._resolved, optimizers, self._recorder, self.view)
