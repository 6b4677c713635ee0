"""The command ``rlhf check``, which runs the conformance checks of a component's kind, as its tests do."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Annotated, Any

import typer

from rlhf_core import ConfigError, RLHFError, UnknownComponent, code_reference
from rlhf_core.component import Registered
from rlhf_core.hookspecs import COMPONENT_HOOKS
from rlhf_core.plugins import Plugins

from .kit import require_kit
from .other_core import tell_of_another_core
from .plugins_command import failure_of, kind_word

_COMMANDS = "rlhf_commands"

Found = tuple[str, Registered[Any]]
"""Hook and registered component."""


def command(plugins: Plugins) -> Callable[..., None]:
    """Return the Typer command, bound to the loaded plugins."""

    def check(
        name: Annotated[
            str,
            typer.Argument(
                help="a component (NAME or PLUGIN:NAME), a plugin, its distribution, or FILE.py:NAME"
            ),
        ],
        kind: Annotated[
            str | None, typer.Option(help="only this kind, for example policy_loss")
        ] = None,
        as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
    ) -> None:
        """Check components against the contract of their kind. Exit code 1 if a check fails."""
        require_kit("rlhf check")
        from rlhf_testing.conformance import (
            CheckOutcome,
            checks_of,
            has_required_options,
            with_required_options,
        )

        outcomes: list[CheckOutcome] = []
        unchecked: list[str] = []
        found = find(plugins, name, kind)
        tell_of_another_core(plugins, {entry.plugin for _, entry in found})
        for hook, entry in found:
            if len(found) > 1 and (missing := _cannot_be_made(hook, entry)):
                unchecked.append(f"{entry.qualified} cannot be made here: {missing}")
                continue
            own = [] if is_file(name) else [_registration(hook, entry)]
            if not checks_of(hook):
                reason = f"there are no checks for a {_kind(hook)}"
            elif has_required_options(entry):
                reason = f"the component has required options; its tests give them: {with_required_options(entry)}"
            else:
                found_out = _outcomes(hook, entry)
                reason = "" if found_out else f"no check of a {_kind(hook)} applies to it"
                own += found_out
            # What failed was checked.
            if reason and not any(outcome.failed for outcome in own):
                unchecked.append(f"{entry.qualified}: {reason}")
            outcomes += own
        if not is_file(name):
            outcomes += _whole_plugin(plugins, name)
        if as_json:
            rows = [{**asdict(outcome), "ok": not outcome.failed} for outcome in outcomes]
            typer.echo(json.dumps({"outcomes": rows, "unchecked": unchecked}, indent=2))
        else:
            _print(outcomes, unchecked)
        if any(outcome.failed for outcome in outcomes):
            raise typer.Exit(1)

    return check


def is_file(name: str) -> bool:
    """Return whether ``name`` has the form ``FILE.py:NAME``."""
    return code_reference.is_reference(name)


def find(plugins: Plugins, name: str, kind: str | None = None) -> list[Found]:
    """Return the components that ``name`` means.

    Raises:
        UnknownComponent: no installed plugin or component has this name.
        ConfigError: the kind does not exist, or ``name`` is a file and no kind is given.
    """
    hooks = _hooks(kind)
    if is_file(name):
        return [_of_file(plugins, name, hooks)]
    entries = [(hook, entry) for hook in hooks for entry in plugins.registries[hook]]
    whole = [found for found in entries if name in _names_of_plugin(found[1])]
    single = [found for found in entries if found[1].is_called(name)]
    # A plugin and its component may share a name (ppo); the name then means the component and its plugin's imports.
    if chosen := single or whole:
        return chosen
    if why := failure_of(plugins, name.partition(":")[0]):
        raise UnknownComponent(f"nothing of {name!r} can be checked: {why}")
    raise UnknownComponent(
        f"no installed plugin or component is called {name!r}. rlhf plugins lists what is installed."
    )


def _of_file(plugins: Plugins, name: str, hooks: Sequence[str]) -> Found:
    if len(hooks) != 1:
        words = ", ".join(kind_word(hook) for hook in COMPONENT_HOOKS)
        raise ConfigError(
            f"{name}: give the kind of the component with --kind, one of {words}", code="usage/kind"
        )
    return hooks[0], plugins.get(hooks[0], name)


def _names_of_plugin(entry: Registered[Any]) -> tuple[str, ...]:
    distribution = (entry.distribution.metadata["Name"],) if entry.distribution else ()
    return (entry.plugin, *distribution)


def _hooks(kind: str | None) -> list[str]:
    words = {kind_word(hook): hook for hook in COMPONENT_HOOKS}
    if kind is None:
        return list(words.values())
    if kind.replace("-", "_") not in words:
        raise ConfigError(f"--kind {kind}: expected one of {', '.join(words)}", code="usage/kind")
    return [words[kind.replace("-", "_")]]


def _kind(hook: str) -> str:
    return COMPONENT_HOOKS[hook]


def _registration(hook: str, entry: Registered[Any]) -> Any:
    from rlhf_testing.checks import check_component

    return _attempt(
        entry.qualified,
        _kind(hook),
        "check_component",
        lambda: check_component(entry.component, hook),
    )


def _whole_plugin(plugins: Plugins, name: str) -> list[Any]:
    """Return the outcomes of the checks of a whole plugin, if ``name`` is a plugin or its distribution."""
    from rlhf_testing.checks import assert_imports_stay_light

    entries = [entry for registry in plugins.registries.values() for entry in registry]
    plugin = next((entry.plugin for entry in entries if name in _names_of_plugin(entry)), None)
    module = getattr(plugins.manager.get_plugin(plugin), "__name__", None) if plugin else None
    if plugin is None or module is None:
        return []
    return [
        _attempt(
            plugin, "plugin", "assert_imports_stay_light", lambda: assert_imports_stay_light(module)
        )
    ]


def _cannot_be_made(hook: str, entry: Registered[Any]) -> str | None:
    """Return the reason why the component cannot be made here, such as a missing extra or device; None if it can.

    When a whole plugin is checked, such a component is left out and the others are checked. When the component itself
    was named, the check fails.
    """
    from rlhf_testing.conformance import has_required_options

    try:
        # The factory of a command is the command itself: called with a config it would run.
        entry.load() if hook == _COMMANDS or has_required_options(entry) else entry.build()
    except RLHFError as error:
        return str(error)
    except ModuleNotFoundError as error:
        # A missing module of the plugin's own is its bug, which the checks report.
        own = _package_of(entry)
        return None if (error.name or "").partition(".")[0] == own else str(error)
    except Exception:
        return None  # the checks report it
    return None


def _package_of(entry: Registered[Any]) -> str:
    factory = entry.component.factory
    module = factory if isinstance(factory, str) else str(getattr(factory, "__module__", ""))
    return module.partition(":")[0].partition(".")[0]


def _outcomes(hook: str, entry: Registered[Any]) -> list[Any]:
    from rlhf_testing.conformance import run_checks, subject

    try:
        # The factory of a command is the command itself: called with a config it would run.
        entry.load() if hook == _COMMANDS else entry.build()
    except Exception as error:
        # A missing extra or device, or a factory that raises, is reported once, and not as a failure of each check.
        return [_attempt(entry.qualified, _kind(hook), "build", _raiser(error))]
    return run_checks(hook, subject(entry, entry.qualified))


def _raiser(error: Exception) -> Callable[[], None]:
    def fail() -> None:
        raise error

    return fail


def _attempt(component: str, kind: str, check: str, run: Callable[[], object]) -> Any:
    from rlhf_testing.conformance import Check, Subject
    from rlhf_testing.conformance.subject import outcome_of

    def named(_: Subject) -> None:
        run()

    named.__name__ = check
    return outcome_of(Check(named), Subject(label=component, make=run), kind, {})


def _print(outcomes: Sequence[Any], unchecked: Sequence[str]) -> None:
    # Only the table needs rich, whose import would slow every command.
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    # Redirected output has no width, and rich would assume 80.
    console = Console(width=None if sys.stdout.isatty() else 200)
    table = Table(box=None, pad_edge=False)
    for title in ("component", "check", "result"):
        table.add_column(title, no_wrap=title != "result", overflow="fold")
    for outcome in outcomes:
        reason = escape(outcome.reason.partition("\n")[0])
        result = f"{outcome.status}: {reason}" if reason else outcome.status
        style = "red" if outcome.failed else None
        table.add_row(outcome.component, outcome.check, result, style=style)
    if outcomes:
        console.print(table)
    for line in unchecked:
        typer.echo(f"not checked: {line}")
    failed = sum(outcome.failed for outcome in outcomes)
    differs = sum(outcome.status == "differs" for outcome in outcomes)
    typer.echo(
        f"{len(outcomes)} checks, {failed} failed"
        + (f", {differs} of usual properties differ" if differs else "")
    )
