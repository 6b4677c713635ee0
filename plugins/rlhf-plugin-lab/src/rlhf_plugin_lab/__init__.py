"""Registration of the command ``rlhf view``, which shows runs as a page, and of the observer ``token_files``."""

from __future__ import annotations

from typing import Any

from rlhf_core import Component, hookimpl

from . import token_files


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


@hookimpl
def rlhf_observers() -> list[Component[Any]]:
    return [token_files.COMPONENT]
