"""Registration of the command ``rlhf migrate``, which turns the launch of another framework into a configuration."""

from __future__ import annotations

from typing import Any

from rlhf_core import Component, hookimpl


@hookimpl
def rlhf_commands() -> list[Component[Any]]:
    """Return the ``migrate`` command; its module is imported when the command runs."""
    return [
        Component(
            name="migrate",
            factory="rlhf_plugin_migrate.command:main",
            summary="Turn a run of OpenRLHF, TRL, verl, SkyRL or prime-rl into a configuration, and list what differs.",
        )
    ]
