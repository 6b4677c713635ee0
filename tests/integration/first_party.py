"""The components that the plugins of this repository have."""

from pathlib import Path
from typing import Any

from rlhf_core import plugins as plugin_loader
from rlhf_core.component import Registered

PLUGINS = Path(__file__).parents[2] / "plugins"


def installed(hook: str) -> list[Registered[Any]]:
    """The first-party components of a kind; what else is installed here is not our promise."""
    return [
        entry
        for entry in plugin_loader.load("").registries[hook]
        if entry.distribution is not None
        and (PLUGINS / entry.distribution.metadata["Name"]).is_dir()
    ]
