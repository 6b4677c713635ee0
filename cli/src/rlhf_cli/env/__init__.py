"""Commands of ``rlhf env``, about environments without a run. Imported only when one of them is called."""

from __future__ import annotations

import typer

from ..groups import CommandGroup
from .check import check
from .chosen import OPTIONS
from .listing import list_environments
from .serve import serve
from .show import show
from .trying import try_environment

app = typer.Typer(cls=CommandGroup, no_args_is_help=True)


@app.callback()
def _environments() -> None:
    """List, show, check, try and serve environments, without a model."""


app.command("list")(list_environments)
app.command("show", context_settings=OPTIONS)(show)
app.command("check", context_settings=OPTIONS)(check)
app.command("try", context_settings=OPTIONS)(try_environment)
app.command("serve")(serve)
