"""Entry point of ``rlhf``: the command tree, and errors as one message with an exit code.

Neither the import of this module nor any help imports torch.
"""

from __future__ import annotations

import errno
import importlib
import os
import platform
import sys
import traceback
from collections.abc import Callable, Sequence
from contextvars import copy_context
from importlib import metadata
from typing import Annotated, Any

import typer

from rlhf_core import PluginError, RLHFError, StorageError
from rlhf_core import plugins as plugin_loader
from rlhf_core.component import Registered
from rlhf_core.plugins import Plugins
from rlhf_core.storage import is_full, reason_of
from rlhf_trainer.loop.interrupts import interrupted_code, own_process

from . import check, errors, new, plugins_command, quickstart, train
from .groups import CommandGroup

_OWN_MODULES = {
    "data": "Check and show data files.",
    "env": "List, show, check, try and serve environments, without a model.",
    "show": "Show what the model of a run wrote, with rewards, or compare metrics of runs.",
    "template": "Report how a chat template renders a conversation that continues.",
}
"""Commands that are imported only when they are called."""

_USAGE_ERROR: type[Any] = typer.BadParameter.__mro__[1]
"""Typer's ``UsageError``, which it imports from click or from its own copy of click, by version."""

_INTERRUPTED = 130

_OWN_ARGUMENTS = {"allow_extra_args": True, "ignore_unknown_options": True}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    The code is 0 for success, 1 for a failed run, 2 for a mistake of the user, 130 for an interrupt, and 143 for a
    second SIGTERM. Errors are written as ``--errors`` in front of the command says.
    """
    if argv is None:
        own_process()
    try:
        form, arguments = errors.split_form(sys.argv[1:] if argv is None else argv)
        code = copy_context().run(_run, arguments, form)
    except RLHFError as error:
        code = _tell(error)
    finally:
        lost = _leave_what_takes_no_output()
    return _tell(_without_room(lost)) if lost is not None and code == 0 else code


def _run(arguments: list[str], form: errors.Form) -> int:
    errors.write_as(form)
    code = _code_of(arguments)
    if code != 0 and not errors.was_shown():
        errors.tell_program("CommandFailed", "what was printed before says why", code)
    return code


def _code_of(arguments: list[str]) -> int:
    """Run the command and return its exit code, with errors written."""
    try:
        app = command_tree(plugin_loader.load(), arguments)
        # Typer writes mistakes of usage by itself, and ends the process, unless it is told not to. No words: the help.
        alone = not (errors.is_json() and arguments)
        code = app(args=arguments, prog_name="rlhf", standalone_mode=alone)
    except RLHFError as error:
        return _tell(error)
    except KeyboardInterrupt as error:
        code, text = interrupted_code(), str(error) or "interrupted"
        errors.tell(text, errors.report("Interrupted", text, code))
        return code
    except SystemExit as stop:
        code = stop.code
        if isinstance(code, str):  # as Python does with what is no number
            errors.tell(code, errors.report("SystemExit", code, 1))
            return 1
    except Exception as error:
        if is_full(error):
            return _tell(_without_room(error))
        if not errors.is_json():
            raise
        return _tell_unforeseen(error)
    if code == _INTERRUPTED:  # Typer's code, whichever signal it was
        return interrupted_code()
    return code if isinstance(code, int) else 0


def _tell(error: RLHFError) -> int:
    """Write an error, and return the exit code that it has."""
    errors.tell(f"error: {error}", errors.report_of(error, error.exit_code))
    return error.exit_code


def _without_room(error: Exception) -> StorageError:
    """Return the error of a write that nobody named, for which there was no room."""
    what = getattr(error, "filename", None) or "a file, or what this command prints,"
    return StorageError(f"{what} could not be written: {reason_of(error)}")


def _tell_unforeseen(error: Exception) -> int:
    """Write the object of a mistake of usage, or of an exception that nobody foresaw, behind its traceback."""
    if isinstance(error, _USAGE_ERROR):
        errors.tell_program("UsageError", error.format_message(), 2)
        return 2
    traceback.print_exception(error)
    errors.tell_program(type(error).__name__, str(error), 1)
    return 1


def _leave_what_takes_no_output() -> OSError | None:
    """Keep the exit code of a run whose terminal was closed: Python's own last flush would make it 120.

    Returns:
        The error of output without room, such as that into a file on a full disk.
    """
    lost = None
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError as error:
            if is_full(error):
                lost = error
            elif error.errno != errno.EIO:
                raise
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    return lost


def command_tree(plugins: Plugins, arguments: Sequence[str] = ()) -> typer.Typer:
    """Return all commands: those of this package, and those that plugins register.

    Args:
        arguments: the command line; a command that is not on it may have its summary only.
    """
    app = typer.Typer(
        cls=CommandGroup,
        help="Reinforcement learning for language models, made of plugins.",
        epilog="Start with: rlhf quickstart. The options of a command: rlhf COMMAND --help.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,  # The import of rich would take a third of the time of help.
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_options)
    app.command(
        "train", add_help_option=False, context_settings=_OWN_ARGUMENTS, help=train.SUMMARY
    )(train.command(plugins))
    app.command("quickstart", context_settings=_OWN_ARGUMENTS, help=quickstart.SUMMARY)(
        quickstart.command(plugins)
    )
    app.add_typer(plugins_command.tree(plugins), name="plugins")
    app.add_typer(new.tree(plugins), name="new")
    app.command("check")(check.command(plugins))
    for name, summary in _OWN_MODULES.items():
        if name in arguments[:1]:
            _add_module(app, name)
        else:
            app.command(name, help=summary)(_never_called)
    _add_plugin_commands(app, plugins)
    return app


def _print_version(is_asked: bool) -> None:
    if is_asked:
        number, python = metadata.version("rlhf-cli"), platform.python_version()
        print(f"rlhf-cli {number}, Python {python}")
        raise typer.Exit


def _options(
    form: Annotated[
        errors.Form, typer.Option(errors.FLAG, help="how errors are written on stderr")
    ] = errors.Form.TEXT,
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="print the version, and that of Python", callback=_print_version
        ),
    ] = False,
) -> None:
    """Reinforcement learning for language models, made of plugins."""
    # Only for the help: errors that come before Typer reads them have to be written so, too; and the version's callback
    # has printed it.


def _add_module(app: typer.Typer, name: str) -> None:
    """Add the command of the module ``name``: the module's tree ``app``, or its function ``name``."""
    module = importlib.import_module(f".{name}", __package__)
    subtree: object = getattr(module, "app", None)
    if isinstance(subtree, typer.Typer):
        app.add_typer(subtree, name=name, help=_OWN_MODULES[name])
    else:
        app.command(name)(getattr(module, name))


def _never_called() -> None:
    """Stand in the help for a command whose module is imported only when the command is called."""


def _add_plugin_commands(app: typer.Typer, plugins: Plugins) -> None:
    taken = {info.name for info in app.registered_commands}
    taken |= {info.name for info in app.registered_groups}
    for entry in plugins.registries["rlhf_commands"]:
        name = entry.name.replace("_", "-")  # Flags and commands of this package have dashes too.
        if name in taken:
            print(
                f"warning: the command {entry.label} is not available: "
                f"there is already an rlhf {name}",
                file=sys.stderr,
            )
            continue
        taken.add(name)
        summary = f"{entry.component.summary} ({entry.plugin})".strip()
        app.command(
            name,
            add_help_option=False,
            context_settings=_OWN_ARGUMENTS,
            help=summary,
            short_help=summary,
        )(_runner(entry))


def _runner(entry: Registered[Any]) -> Callable[[typer.Context], None]:
    def run(context: typer.Context) -> None:
        try:
            code = entry.load()(list(context.args))
        except Exception as error:
            error.add_note(f"in plugin {entry.plugin} ({entry.origin}), command {entry.name}")
            raise
        if code is None:
            code = 0
        if not isinstance(code, int) or not 0 <= code <= 255:
            raise PluginError(
                f"command {entry.label}: expected an exit code, a whole number from 0 to 255; it returned {code!r}",
                code="plugin/wrong-answer",
            )
        raise typer.Exit(code)

    return run


if __name__ == "__main__":
    sys.exit(main())
