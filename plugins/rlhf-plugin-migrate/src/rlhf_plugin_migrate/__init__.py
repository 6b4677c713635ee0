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
            summary="Turn a command of OpenRLHF or verl, or a TRL file, into a configuration, and list what differs.",
        )
    ]
