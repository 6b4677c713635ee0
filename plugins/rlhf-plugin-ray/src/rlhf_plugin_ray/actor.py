"""What the processes of all actors have in common: they become like the driver, and can be watched."""

from __future__ import annotations

import asyncio

from rlhf_core.plugins import Plugins

from .process import Driver, ProcessInfo, become_like, introduce


class Actor:
    """Made empty; ``prepare`` comes first."""

    _plugins: Plugins

    async def watch(self) -> None:
        """Never return: the caller learns of this process's death at once, even while it asks for nothing."""
        await asyncio.Event().wait()

    async def prepare(self, driver: Driver, who: str, threads: int) -> ProcessInfo:
        """Become like the driver, or refuse."""
        self._plugins = become_like(driver, who, threads)
        return introduce()
