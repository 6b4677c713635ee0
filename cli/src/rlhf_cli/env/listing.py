"""The command ``rlhf env list``: the environments that are installed."""

from __future__ import annotations

import json
import sys
from typing import Annotated, Any

import typer

from rlhf_core import plugins as plugin_loader
from rlhf_core.component import Registered

from .chosen import HOOK, named


def list_environments(
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> None:
    """List installed environments: name and version, kind of episodes, range of rewards, license."""
    plugins = plugin_loader.load()
    rows = [row_of(entry) for entry in plugins.registries[HOOK]]
    rows.sort(key=lambda row: (row["name"], row["origin"]))
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
        return
    if not rows:
        typer.echo("no environment is installed; rlhf new environment NAME writes one")
        return
    _print(rows)


def row_of(registered: Registered[Any]) -> dict[str, Any]:
    """Return the facts of one environment; ``problem`` says why its code cannot be imported."""
    row: dict[str, Any] = {
        "name": registered.name,
        "version": None,
        "kind": None,
        "reward_range": None,
        "deterministic": None,
        "license": None,
        "origin": registered.origin,
        "summary": registered.component.summary,
        "problem": None,
    }
    try:
        found = named(registered, registered.component.config.model_construct())
    except Exception as error:  # One that is broken must not hide the others.
        return row | {"problem": f"{type(error).__name__}: {error}".partition("\n")[0]}
    row["version"] = found.label.partition("@")[2] or None
    if found.manifest is not None:
        row |= {
            "kind": found.manifest.kind.value,
            "reward_range": found.manifest.reward_range,
            "deterministic": found.manifest.deterministic,
            "license": found.manifest.license or None,
        }
    return row


def shown_range(bounds: tuple[float, float] | None) -> str:
    """Return a range of rewards for people."""
    return "" if bounds is None else f"{bounds[0]:g} to {bounds[1]:g}"


def _print(rows: list[dict[str, Any]]) -> None:
    # Only the table needs rich, whose import would slow every command.
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    # Redirected output has no width, and rich would assume 80.
    console = Console(width=None if sys.stdout.isatty() else 200)
    table = Table(box=None, pad_edge=False)
    for title in ("environment", "kind", "reward", "license", "distribution", "summary"):
        table.add_column(title, no_wrap=title != "summary", overflow="fold")
    for row in rows:
        version = f"@{row['version']}" if row["version"] else ""
        cells = (
            row["name"] + version,
            row["kind"] or "",
            shown_range(row["reward_range"]),
            row["license"] or "",
            row["origin"],
            row["problem"] or row["summary"],
        )
        style = "red" if row["problem"] else None
        table.add_row(*(escape(cell) for cell in cells), style=style)
    console.print(table)
