"""Groups of commands in whose help no summary is cut off, as Typer cuts summaries off to 45 characters."""

from __future__ import annotations

from typing import Any

from typer.core import TyperGroup


class CommandGroup(TyperGroup):
    """A group whose help has the first sentence of each command's help, whole."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        for command in self.commands.values():
            text = " ".join((command.help or "").split())
            command.short_help = (
                command.short_help or text.partition(". ")[0].removesuffix(".") + "."
            )
