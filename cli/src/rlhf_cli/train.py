"""The command ``rlhf train``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import typer

from rlhf_core import ConfigError, RLHFError, UnknownComponent
from rlhf_core.config import (
    Layer,
    Resolved,
    check_paths,
    parse_flags,
    path_problems,
    read_toml,
    render_help,
    resolve,
)
from rlhf_core.loop.loggers import build_loggers
from rlhf_core.plugins import Plugins

from . import training

SUMMARY = "Train a model; options are those of the selected plugins."
DEFAULTS = Path(__file__).with_name("defaults.toml")
COMMAND = training.TrainingCommand(
    options=TRAIN,
    defaults=DEFAULTS,
    run="rlhf_core.loop.run:run",
    describe="rlhf_core.loop.describe:describe",
)


def command(plugins: Plugins) -> Callable[[typer.Context], None]:
    """Return the Typer command, bound to the loaded plugins."""

    def train(context: typer.Context) -> None:
        raise typer.Exit(execute(list(context.args), plugins))

    return train


def execute(words: Sequence[str], plugins: Plugins) -> int:
    """Run ``rlhf train WORDS`` and return the exit code.

    Raises:
        RLHFError: the configuration is wrong, or the run could not start.
    """
    arguments = split_arguments(words)
    warn_of_failed_plugins(plugins)
    layers = layers_of(arguments)
    if arguments.help:
        print(render_help(layers, plugins, min(100, shutil.get_terminal_size((100, 24)).columns)))
        return 0
    try:
        resolved = resolve(layers, plugins)
    except UnknownComponent as error:
        raise UnknownComponent(f"{error}{_how_to_get_it_back(layers, plugins)}") from error
    if arguments.dry_run:
        return _describe(resolved, layers, plugins)
    check_paths(resolved, layers)
    if arguments.check:
        # A logger that lacks its library or its key is found here, and not when the run starts on a cluster.
        build_loggers(resolved)
        for caution in resolved.cautions:
            print(f"warning: {caution}", file=sys.stderr)
        print("The configuration is valid.")
        return 0
    _say_unused(resolved)
    # The import is here because it imports torch.
    from rlhf_core.loop.run import run

    result = run(resolved, plugins)
    if result.message and result.status != "finished":
        # The terminal may be gone, which is then why the run ended; the exit code and the run folder say so, too.
        with suppress(OSError):
            print(f"{result.status}: {result.message}", file=sys.stderr)
    return _EXIT_CODES[result.status]


def split_arguments(words: Sequence[str]) -> Arguments:
    """Return the words of the command line, with the command's own switches apart from the options of the run.

    Raises:
        ConfigError: ``-c`` without a file.
    """
    files: list[str] = []
    options: list[str] = []
    switches = {"help": False, "check": False, "dry_run": False}
    pending = list(words)
    while pending:
        word = pending.pop(0)
        if word in ("-c", "--config"):
            if not pending or pending[0].startswith("-"):
                raise ConfigError(f"{word}: expected a TOML file, such as -c run.toml")
            files.append(pending.pop(0))
        elif word.startswith(("--config=", "-c=")):
            files.append(word.partition("=")[2])
        elif word in ("-h", "--help"):
            switches["help"] = True
        elif word in ("--check", "--dry-run"):
            switches[word.strip("-").replace("-", "_")] = True
        elif word == "--resume" and (not pending or pending[0].startswith("-")):
            options += ["--resume", "auto"]
        else:
            options.append(word)
    return Arguments(files=tuple(files), options=tuple(options), **switches)


def layers_of(arguments: Arguments) -> list[Layer]:
    """Return the layers of options: the defaults, the files in order, and the flags."""
    defaults = read_toml(DEFAULTS, defaults=True)
    return [defaults, *map(read_toml, arguments.files), parse_flags(arguments.options)]


def warn_of_failed_plugins(plugins: Plugins) -> None:
    """Print on stderr the plugins that failed to load. Such a plugin is an error only if the run names it."""
    for failure in plugins.failed:
        print(f"warning: {str(failure).splitlines()[0]}", file=sys.stderr)


def _how_to_get_it_back(layers: Sequence[Layer], plugins: Plugins) -> str:
    """When a run is resumed: the plugins that it had and this process has not, as a command that installs them."""
    from rlhf_core.config.paths import folder_to_resume
    from rlhf_core.durable.plugin_record import lost_plugins

    folder = folder_to_resume(layers)
    lost = lost_plugins(folder.plugins, plugins) if folder is not None else []
    if not lost:
        return ""
    return f"\n  The run was made with plugins that are not there now: pip install {' '.join(lost)}"


def _describe(resolved: Resolved, layers: Sequence[Layer], plugins: Plugins) -> int:
    # Only this branch needs the module.
    from rlhf_core.loop.describe import describe

    print(describe(resolved, plugins))
    for problem in path_problems(resolved, layers):
        print(f"not ready to run: {problem}", file=sys.stderr)
    try:
        build_loggers(resolved)
    except RLHFError as error:
        print(f"not ready to run: {error}", file=sys.stderr)
    return 0


def _say_unused(resolved: Resolved) -> None:
    if resolved.unused:
        print(
            f"not used by this run: {', '.join(resolved.unused)} (their components are not selected)",
            file=sys.stderr,
        )
