"""The command ``rlhf env show``: one environment's options, manifest and first tasks."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence, Sized
from itertools import islice
from typing import Annotated, Any

import typer

from rlhf_core import plugins as plugin_loader
from rlhf_core.contracts import MakesTasks

from ..plugins_command import describe
from .chosen import Name, NamedEnvironment, chosen
from .listing import shown_range
from .printing import plain


def show(
    context: typer.Context,
    name: Name,
    split: Annotated[
        list[str] | None, typer.Option(help="split of tasks; unset: train and eval")
    ] = None,
    rows: Annotated[int, typer.Option(min=0, help="number of tasks to show of a split")] = 3,
) -> None:
    """Show an environment: options, manifest, and the first tasks of its splits. Its own options may follow."""
    plugins = plugin_loader.load()
    found = chosen(name, context.args, plugins)
    if found.registered.distribution is not None:
        typer.echo(describe(plugins, found.registered.qualified))
    else:
        typer.echo(f"{found.registered.name}  ({found.registered.plugin})")
    for line in (*_manifest(found), *_tasks(found, split, rows)):
        typer.echo(plain(line))


def _manifest(found: NamedEnvironment) -> Iterator[str]:
    stated = found.manifest
    if stated is None:
        yield f"{found.label}: no manifest"
        return
    yield found.label
    yield f"  kind: {stated.kind.value}"
    yield f"  reward of an episode: {shown_range(stated.reward_range) or 'not stated'}"
    yield f"  deterministic: {'yes' if stated.deterministic else 'no'}"
    yield f"  license: {stated.license or 'not stated'}"


def _tasks(found: NamedEnvironment, splits: Sequence[str] | None, count: int) -> Iterator[str]:
    maker = found.make()
    if not isinstance(maker, MakesTasks):
        yield "  makes no tasks: its episodes differ in their seeds, or start from rows of --data"
        return
    for split in splits or ("train", "eval"):
        try:
            rows = maker.tasks(split)
            first: list[Mapping[str, Any]] = list(islice(rows, count))
        except KeyError:
            yield f"  split {split}: there is none"
            continue
        size = f"{len(rows)} tasks" if isinstance(rows, Sized) else "a stream of tasks"
        yield f"  split {split}: {size}"
        yield from (
            f"    {json.dumps(dict(row), ensure_ascii=False, default=str)}" for row in first
        )
