"""The command ``rlhf plugins``, which lists installed plugins, their components, and plugins that failed to load."""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable
from typing import Annotated, Any

import typer

from rlhf_config.annotations import type_name
from rlhf_config.presets import HOOK as PRESET_HOOK
from rlhf_config.sections import fields_of
from rlhf_core import ConfigError, PluginError, RLHFError, UnknownComponent
from rlhf_core.component import Registered
from rlhf_core.contracts import Preset
from rlhf_core.hookspecs import COMPONENT_HOOKS, OBSERVER_HOOKS
from rlhf_core.plugins import FailedPlugin, Plugins, unregistered

from .groups import CommandGroup
from .other_core import tell_of_another_core

Row = dict[str, str]
"""Cells of one line of the list, by column."""


def tree(plugins: Plugins) -> typer.Typer:
    """Return the commands ``rlhf plugins`` and ``rlhf plugins show``."""
    app = typer.Typer(
        cls=CommandGroup, help="List installed plugins and components.", invoke_without_command=True
    )
    app.callback()(_list_command(plugins))
    app.command("show")(_show_command(plugins))
    return app


def rows_of(plugins: Plugins, kind: str | None = None, text: str | None = None) -> list[Row]:
    """Return one row per component, one per plugin with observer hooks, and one per plugin that failed to load.

    Args:
        kind: only components of this kind.
        text: only rows that have it in a cell, whatever the case of its letters.

    Raises:
        ConfigError: the kind does not exist.
    """
    wanted = None if kind is None else _hook_of(kind)
    rows = [
        _component_row(hook, entry)
        for hook, registry in plugins.registries.items()
        if wanted in (None, hook)
        for entry in registry
    ]
    if wanted is None:
        rows += _observer_hook_rows(plugins)
        rows += [_failure_row(failure) for failure in plugins.failed + unregistered()]
    if text is not None:
        rows = [row for row in rows if text.casefold() in " ".join(row.values()).casefold()]
    return sorted(rows, key=lambda row: (row["plugin"], row["kind"], row["component"]))


def describe(plugins: Plugins, name: str) -> str:
    """Return the description of all components called ``name``, of any kind, or of the observer hooks of a plugin.

    Raises:
        UnknownComponent: no installed plugin has a component of this name, or observer hooks and this name.
    """
    found = [
        (registry.kind, entry)
        for registry in plugins.registries.values()
        for entry in registry
        if entry.is_called(name)
    ]
    if not found and name in (watching := observed_hooks(plugins)):
        return _describe_observer_hooks(plugins, name, watching[name])
    if not found:
        raise UnknownComponent(_unknown(plugins, name))
    return "\n\n".join(_describe(kind, entry) for kind, entry in found)


def observed_hooks(plugins: Plugins) -> dict[str, list[str]]:
    """Return the observer hooks that each plugin implements, by the plugin's name."""
    watching: dict[str, list[str]] = {}
    for hook in OBSERVER_HOOKS:
        for implementation in getattr(plugins.manager.hook, hook).get_hookimpls():
            watching.setdefault(implementation.plugin_name, []).append(hook)
    return watching


def _list_command(plugins: Plugins) -> Callable[..., None]:
    def list_plugins(
        context: typer.Context,
        kind: Annotated[
            str | None,
            typer.Option(help="list only components of this kind, for example advantage_estimator"),
        ] = None,
        text: Annotated[
            str | None,
            typer.Option(
                "--filter",
                help="list only components with this text in their name, plugin or summary",
            ),
        ] = None,
        as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
        strict: Annotated[bool, typer.Option(help="exit with 1 if a plugin failed")] = False,
    ) -> None:
        if context.invoked_subcommand is not None:
            return
        tell_of_another_core(plugins)
        rows, failed = rows_of(plugins, kind, text), plugins.failed + unregistered()
        if as_json:
            typer.echo(json.dumps(rows, indent=2))
        else:
            if not rows:
                typer.echo("nothing that is installed has this; rlhf plugins lists all")
            else:
                _print_by_kind(rows)
            for failure in failed if kind is None else ():
                typer.echo(f"\n{_why(failure)}")
        if strict and failed:
            raise PluginError(
                f"{len(failed)} plugin(s) could not be loaded: {', '.join(one.name for one in failed)}",
                code="plugin/not-loaded",
            )

    return list_plugins


def _show_command(plugins: Plugins) -> Callable[[str], None]:
    def show(
        name: Annotated[str, typer.Argument(help="a component, as NAME or PLUGIN:NAME")],
    ) -> None:
        """Show one component: its options, what it needs, where its source is."""
        typer.echo(describe(plugins, name))

    return show


def _component_row(hook: str, entry: Registered[Any]) -> Row:
    return {
        "plugin": entry.plugin,
        "distribution": entry.distribution.metadata["Name"] if entry.distribution else "",
        "version": entry.distribution.version if entry.distribution else "",
        "kind": kind_word(hook),
        "component": entry.name,
        "summary": entry.component.summary,
        "status": "ok",
    }


def _observer_hook_rows(plugins: Plugins) -> list[Row]:
    return [
        {
            "plugin": plugin,
            "distribution": plugins.loaded[plugin].partition(" ")[0],
            "version": plugins.loaded[plugin].partition(" ")[2],
            "kind": "observer hooks",
            "component": "",
            "summary": f"watches {', '.join(hook.removeprefix('rlhf_') for hook in hooks)}",
            "status": "ok",
        }
        for plugin, hooks in observed_hooks(plugins).items()
    ]


def _failure_row(failure: FailedPlugin) -> Row:
    distribution, _, version = failure.origin.partition(" ")
    return {
        "plugin": failure.name,
        "distribution": distribution,
        "version": version,
        "kind": "",
        "component": "",
        "summary": "",
        "status": f"failed: {str(failure.error) or type(failure.error).__name__}",
    }


def kind_word(hook: str) -> str:
    """Return the word for a hook's kind: ``policy_loss`` for ``rlhf_policy_losses``."""
    word = hook.removeprefix("rlhf_")
    return word.removesuffix("es") if word.endswith("sses") else word.removesuffix("s")


def _hook_of(kind: str) -> str:
    hooks = {kind_word(hook): hook for hook in COMPONENT_HOOKS}
    if kind.replace("-", "_") not in hooks:
        raise ConfigError(f"--kind {kind}: expected one of {', '.join(hooks)}", code="usage/kind")
    return hooks[kind.replace("-", "_")]


def _print_by_kind(rows: list[Row]) -> None:
    """Print components under their kinds, each with its plugin, then where the plugins come from."""
    # Only the list needs rich, whose import would slow every command.
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    # Redirected output has no width, and rich would assume 80. It is read by programs too, so nothing is cut off.
    console = Console(width=None if sys.stdout.isatty() else 1000)
    by_kind: dict[str, list[Row]] = {}
    for row in rows:
        by_kind.setdefault(
            row["kind"] if row["status"] == "ok" else "failed, see below", []
        ).append(row)
    for kind in sorted(by_kind):
        console.print(
            escape(kind), style="bold" if by_kind[kind][0]["status"] == "ok" else "bold red"
        )
        table = Table(box=None, pad_edge=False, show_header=False)
        table.add_column(width=1)
        table.add_column(min_width=22)
        table.add_column(style="dim")
        table.add_column(overflow="fold")
        for row in sorted(by_kind[kind], key=lambda row: (row["component"], row["plugin"])):
            name, plugin, summary = (
                escape(row[cell].partition("\n")[0]) for cell in ("component", "plugin", "summary")
            )
            table.add_row("", name or plugin, plugin if name else "", summary)
        console.print(table)
    origins = sorted({f"{row['distribution']} {row['version']}" for row in rows})
    console.print(f"\nfrom {escape(', '.join(origins))}", style="dim")


def _why(failure: FailedPlugin) -> str:
    """Return why a plugin failed: the whole message, and where in the plugin it was raised."""
    error = failure.error
    reason = str(error) if isinstance(error, RLHFError) else f"{type(error).__name__}: {error}"
    lines = [f"{failure.name} ({failure.origin}) cannot be used:"]
    lines += [f"  {line}" for line in reason.splitlines()]
    places = traceback.extract_tb(error.__traceback__)
    if places and not isinstance(error, RLHFError):
        lines.append(f"  raised in {places[-1].filename}:{places[-1].lineno}")
    return "\n".join(lines)


def _describe_observer_hooks(plugins: Plugins, plugin: str, hooks: list[str]) -> str:
    source = getattr(plugins.manager.get_plugin(plugin), "__file__", None)
    return "\n".join(
        [
            f"{plugin}  (observer hooks, {plugins.loaded[plugin]})",
            "  hears every run; these hooks have no options and are chosen by none",
            f"  source: {source or 'unknown'}",
            f"  hooks: {', '.join(hooks)}",
        ]
    )


def _describe(kind: str, entry: Registered[Any]) -> str:
    component = entry.component
    lines = [
        f"{entry.qualified}  ({kind}, {entry.origin})",
        f"  {component.summary or 'no summary'}",
        f"  source: {entry.source() or 'unknown'}",
    ]
    for label in ("aliases", "needs", "conflicts", "provides"):
        if words := sorted(getattr(component, label)):
            lines.append(f"  {label}: {', '.join(words)}")
    if kind == COMPONENT_HOOKS[PRESET_HOOK]:
        preset: Preset = entry.build()
        use = f"rlhf train --preset {entry.name}"
        return "\n".join(
            [*lines[:2], f"  source: {preset.file}", f"  use: {use}", "", preset.text()]
        )
    fields = list(fields_of(component.config))
    lines.append("  options:" if fields else "  no options")
    for name, info in fields:
        default = (
            "required"
            if info.is_required()
            else f"default {info.get_default(call_default_factory=True)!r}"
        )
        lines.append(
            f"    {name} {type_name(info.annotation)} ({default}): {info.description or ''}".rstrip(
                ": "
            )
        )
    return "\n".join(lines)


def failure_of(plugins: Plugins, name: str) -> str | None:
    """Return why the plugin, or the distribution, of this name cannot be used; None: no such plugin has failed."""
    for failure in plugins.failed + unregistered():
        distribution = failure.origin.partition(" ")[0]
        if name.replace("-", "_") in (failure.name, distribution.replace("-", "_")):
            return _why(failure)
    return None


def _unknown(plugins: Plugins, name: str) -> str:
    import difflib

    if why := failure_of(plugins, name.partition(":")[0]):
        return f"no component {name!r} can be shown: {why}"
    known = sorted({entry.name for registry in plugins.registries.values() for entry in registry})
    near = difflib.get_close_matches(name.rpartition(":")[2], known, n=1)
    hint = f"Did you mean {near[0]!r}?" if near else "rlhf plugins lists what is installed."
    return f"no installed plugin has a component {name!r}. {hint}"
