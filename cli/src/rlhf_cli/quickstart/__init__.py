"""The command ``rlhf quickstart``: a task, a tiny model and a configuration in a folder, and a run with them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from rlhf_core.plugins import Plugins

from .. import train

SUMMARY = "Write a small task and a tiny model, and train the model on it in less than a minute."
FOLDER = Path("quickstart")
"""The folder below the working directory, unless ``--folder`` names another."""


def command(plugins: Plugins) -> Callable[[typer.Context, Path], None]:
    """Return the Typer command, bound to the loaded plugins."""

    def quickstart(
        context: typer.Context,
        folder: Annotated[
            Path, typer.Option(help="new folder for the task, its configuration and the run")
        ] = FOLDER,
    ) -> None:
        from .files import write

        if not (folder / "run.toml").exists():
            typer.echo(f"Writing a task and a tiny model into {folder}, which takes some seconds")
            write(folder)
        typer.echo(f"{folder} holds the rows, a reward, a model and run.toml. Running:")
        words = ["-c", str(folder / "run.toml"), "--resume", "auto", *context.args]
        typer.echo(f"  rlhf train {' '.join(words)}\n")
        raise typer.Exit(train.execute(words, plugins))

    return quickstart
