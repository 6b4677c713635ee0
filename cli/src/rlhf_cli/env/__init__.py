"""Commands of ``rlhf env``, about environments without a run. Imported only when one of them is called."""

from __future__ import annotations

import typer

from .serve import serve

app = typer.Typer(no_args_is_help=True)


@app.callback()
def _environments() -> None:
    """Serve environments to runs elsewhere."""


app.command("serve")(serve)
