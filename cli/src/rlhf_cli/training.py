"""Commands that train: they read the options of their tree, check them, and start the run or describe it.

The set of options depends on the plugins that the options select, so such a command parses its own arguments. This
module is public to plugins (``docs/plugins.md``) and imports no torch.
"""

from __future__ import annotations

import importlib
import inspect
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from rlhf_config import (
    CommandOptions,
    Layer,
    OptionTree,
    ResolvedOptions,
    check_installed,
    check_paths,
    parse_flags,
    path_problems,
    read_toml,
    render_help,
    resolve_options,
    with_memory_options,
)
from rlhf_config.checks.data_files import split_name
from rlhf_config.checks.named_columns import named_columns
from rlhf_core import ConfigError, MissingDependency, RLHFError, UnknownComponent
from rlhf_core.contracts import Accelerator, RunResult
from rlhf_core.plugins import Plugins, load
from rlhf_trainer.loop.listeners import build_loggers, build_observers

from .errors import report, tell
from .gpus import gpu_layers, gpus_elsewhere, idle_gpus

if TYPE_CHECKING:
    from rlhf_data.forms.opened_sets import OpenedSets

OptionsT = TypeVar("OptionsT", bound=CommandOptions)

_EXIT_CODES = {"finished": 0, "failed": 1, "interrupted": 130}


@dataclass(frozen=True, slots=True, kw_only=True)
class Arguments:
    """Arguments of the command line, sorted by their purpose."""

    files: tuple[str, ...] = ()
    """TOML files (``-c``), in order."""
    help: bool = False
    """Whether to print the help only."""
    check: bool = False
    """Whether to check the configuration only."""
    dry_run: bool = False
    """Whether to describe the run only."""
    gpus: str | None = None
    """Number of GPUs of this machine to train on, or ``all``; None: as the options say."""
    options: tuple[str, ...] = ()
    """All other words: options of the run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingCommand(Generic[OptionsT]):
    """A command that trains."""

    options: OptionTree[OptionsT]
    defaults: Path
    """TOML file with the components that run when nobody says otherwise."""
    run: str
    """``module:function``, called with the resolved options and the plugins; it returns a ``RunResult``. The module is
    imported when a run starts, because it imports torch. From Python it is also given ``control``, a
    ``rlhf_trainer.runs.Control`` for ``drive``; without that parameter the command is not done step by step."""
    describe: str
    """``module:function`` likewise, called with the resolved options and the plugins; it returns the text of
    ``--dry-run``."""
    rows: str | None = None
    """``module:function``, called with the resolved options by ``--check`` and ``--dry-run``. It raises the
    ``DataError`` with which a run would refuse every row of a set for want of a column. A parameter ``opened`` gets the
    sets that are open already, or None. None: rows are read by the run alone."""
    optimizers: Mapping[str, str] = field(default_factory=dict)
    """Role that learns -> selector of its optimizer, the main one first. A Python program may change their learning
    rates while the run goes on. Its course reads them in ``rlhf_trainer.runs.RatedState``."""

    def __call__(self, words: Sequence[str]) -> int:
        """Run the command with the plugins that are installed; see ``execute``. So it can be a plugin's command."""
        return execute(self, words, load())


def execute(command: TrainingCommand[OptionsT], words: Sequence[str], plugins: Plugins) -> int:
    """Run ``rlhf COMMAND WORDS`` and return the exit code.

    Raises:
        RLHFError: the configuration is wrong, or the run could not start.
    """
    arguments = split_arguments(words)
    warn_of_failed_plugins(plugins)
    is_run = not (arguments.help or arguments.check or arguments.dry_run)
    elsewhere = None if is_run else gpus_elsewhere(arguments.gpus)
    layers = layers_of(arguments, command.defaults, elsewhere)
    if arguments.help:
        width = min(100, shutil.get_terminal_size((100, 24)).columns)
        print(render_help(layers, plugins, width, command.options))
        return 0
    try:
        resolved = resolve_options(layers, plugins, command.options, elsewhere)
        resolved = with_memory_options(resolved, layers, plugins, command.options)
    except UnknownComponent as error:
        lost = _how_to_get_it_back(layers, plugins, command.options)
        raise error.with_text(f"{error}{lost}") from error
    if arguments.dry_run:
        print(function_of(command.describe)(resolved, plugins))
        for problem in path_problems(resolved, layers, command.options):
            print(f"not ready to run: {problem}", file=sys.stderr)
        for check in (
            check_outside,
            lambda given: check_columns(given, layers),
            lambda given: check_rows(given, command),
            build_loggers,
            build_observers,
            check_installed,
        ):
            try:
                check(resolved)
            except RLHFError as error:
                print(f"not ready to run: {error}", file=sys.stderr)
        return 0
    check_paths(resolved, layers, command.options)
    check_outside(resolved)
    opened = check_columns(resolved, layers)
    if arguments.check:
        check_rows(resolved, command, opened)
        # A logger that lacks its library or its key is found here, and not when the run starts on a cluster.
        build_loggers(resolved)
        build_observers(resolved)
        try:
            check_installed(resolved)
        except MissingDependency as error:
            # The configuration is right, and may be meant for another machine.
            print(f"not ready to run here: {error}", file=sys.stderr)
        say_choices(resolved)
        for caution in resolved.cautions:
            print(f"warning: {caution}", file=sys.stderr)
        print("The configuration is valid.")
        return 0
    check_installed(resolved)
    _say_unused(resolved)
    say_choices(resolved)
    if idle := idle_gpus(resolved):
        print(idle, file=sys.stderr)
    check_hub(resolved, command)
    result: RunResult = function_of(command.run)(resolved, plugins)
    code = _EXIT_CODES[result.status]
    if result.message and result.status != "finished":
        kind = {"failed": "RunFailed", "interrupted": "Interrupted"}[result.status]
        tell(f"{result.status}: {result.message}", report(kind, result.message, code))
    return code


def check_outside(resolved: ResolvedOptions[Any]) -> None:
    """Check what the options of the chosen components name outside of the configuration.

    Raises:
        ConfigError: something is missing.
    """
    for chosen in resolved.selections.values():
        for selection in chosen:
            selection.options.check_outside()


def check_columns(resolved: ResolvedOptions[Any], layers: Sequence[Layer]) -> OpenedSets | None:
    """Check that the rows have the columns that options name, and those that the chosen components need; return the
    sets that were opened for these, if any were.

    Args:
        layers: the layers that ``resolved`` was made from.

    Raises:
        ConfigError: no row has a column.
        DataError: the rows cannot be read.
    """
    # Readers of data sets are slow to import, and most checks read none.
    if named := tuple(named_columns(resolved.run)):
        from rlhf_data.checked.needed_columns import check_named_columns

        check_named_columns(named, layers)
    chosen = [one for selections in resolved.selections.values() for one in selections]
    if any(one.columns for one in chosen):
        from rlhf_data.checked.needed_columns import check_needed_columns

        return check_needed_columns(resolved, layers)
    return None


def check_rows(
    resolved: ResolvedOptions[Any], command: TrainingCommand[Any], opened: OpenedSets | None = None
) -> None:
    """Check that some row has the columns without which none can be used, also those that no option names. A run finds
    out by itself, when it reads its rows.

    Raises:
        DataError: no row has them, or the rows cannot be read.
    """
    if command.rows is not None:
        check = function_of(command.rows)
        takes_opened = "opened" in inspect.signature(check).parameters
        check(resolved, **({"opened": opened} if takes_opened else {}))


def check_hub(resolved: ResolvedOptions[OptionsT], command: TrainingCommand[OptionsT]) -> None:
    """Check that the hub answers where a model or a set is not on this machine: a run imports torch before it asks.

    Raises:
        ConfigError: the hub cannot be reached and a model was not downloaded earlier, or the hub does not have it.
        DataError: the hub cannot be reached and a set was not downloaded earlier.
    """
    from rlhf_data.hub import reach_hub
    from rlhf_data.sources import reach_source

    for _, name in command.options.models(resolved.run):
        reach_hub(name)
    for _, entry in command.options.data(resolved.run):
        reach_source(split_name(entry)[1])


def split_arguments(words: Sequence[str]) -> Arguments:
    """Return the words of the command line, with the command's own switches apart from the options of the run.

    Raises:
        ConfigError: ``-c`` without a file.
    """
    files: list[str] = []
    options: list[str] = []
    switches = {"help": False, "check": False, "dry_run": False}
    gpus: str | None = None
    pending = list(words)
    while pending:
        word = pending.pop(0)
        if word in ("-c", "--config"):
            if not pending or pending[0].startswith("-"):
                raise ConfigError(
                    f"{word}: expected a TOML file, such as -c run.toml", code="usage/not-toml"
                )
            files.append(pending.pop(0))
        elif word.startswith(("--config=", "-c=")):
            files.append(word.partition("=")[2])
        elif word == "--gpus":
            if not pending or pending[0].startswith("-"):
                raise ConfigError(
                    "--gpus: expected a number or all, such as --gpus 4",
                    code="usage/number-of-gpus",
                )
            gpus = pending.pop(0)
        elif word.startswith("--gpus="):
            gpus = word.partition("=")[2]
        elif word in ("-h", "--help"):
            switches["help"] = True
        elif word in ("--check", "--dry-run"):
            switches[word.strip("-").replace("-", "_")] = True
        elif word == "--resume" and (not pending or pending[0].startswith("-")):
            options += ["--resume", "auto"]
        else:
            options.append(word)
    return Arguments(files=tuple(files), options=tuple(options), gpus=gpus, **switches)


def layers_of(
    arguments: Arguments, defaults: Path, accelerators: Sequence[Accelerator] | None = None
) -> list[Layer]:
    """Return the layers of options: the defaults, those of ``--gpus``, the files in order, and the flags.

    Args:
        accelerators: the GPUs that there are; None: those of this machine.

    Raises:
        ConfigError: a file cannot be read, a flag has no name, or the machine has not the GPUs.
    """
    return [
        read_toml(defaults, defaults=True),
        *gpu_layers(arguments.gpus, accelerators),
        *map(read_toml, arguments.files),
        parse_flags(arguments.options),
    ]


def warn_of_failed_plugins(plugins: Plugins) -> None:
    """Print on stderr the plugins that failed to load. Such a plugin is an error only if the run names it."""
    for failure in plugins.failed:
        print(f"warning: {str(failure).splitlines()[0]}", file=sys.stderr)


def _how_to_get_it_back(layers: Sequence[Layer], plugins: Plugins, options: OptionTree[Any]) -> str:
    """When a run is resumed: the plugins that it had and this process has not, as a command that installs them."""
    from rlhf_config.paths import folder_to_resume
    from rlhf_trainer.durable.plugin_record import lost_plugins

    folder = folder_to_resume(layers, options)
    lost = lost_plugins(folder.plugins, plugins) if folder is not None else []
    if not lost:
        return ""
    return f"\n  The run was made with plugins that are not there now: pip install {' '.join(lost)}"


def _say_unused(resolved: ResolvedOptions[Any]) -> None:
    if resolved.unused:
        print(
            f"not used by this run: {', '.join(resolved.unused)} (their components are not selected)",
            file=sys.stderr,
        )


def say_choices(resolved: ResolvedOptions[Any]) -> None:
    """Print on stderr which component each selector's ``auto`` has come to, and why."""
    for choice in resolved.choices:
        print(choice, file=sys.stderr)


def function_of(path: str) -> Any:
    """Return the function that ``module:function`` names, after its module is imported."""
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)
