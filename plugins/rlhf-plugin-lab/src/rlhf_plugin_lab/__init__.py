"""Registration of the command ``rlhf view``, which shows what runs recorded as one page."""

from __future__ import annotations

from typing import Any

from rlhf_core import Component, hookimpl


@hookimpl
def rlhf_commands() -> list[Component[Any]]:
    """Return the ``view`` command; its module is imported when the command runs."""
    return [
        Component(
            name="view",
            factory="rlhf_plugin_lab.command:main",
            summary="Show runs as one page: curves, options, rollouts, tokens. A file, or a local server.",
        )
    ]
