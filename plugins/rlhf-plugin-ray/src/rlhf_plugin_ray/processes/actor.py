"""The base class of all actors: an actor's process becomes like the driver, and the driver can watch it."""

from __future__ import annotations

import asyncio
import os
import socket

from rlhf_core.plugins import Plugins

from .process import Driver, ProcessInfo, become_like


class Actor:
    """Base class of the actors. The constructor builds nothing; ``prepare`` has to be the first call."""

    _plugins: Plugins

    async def watch(self) -> None:
        """Never return, so that a caller with this call pending learns of the process's death at once."""
        await asyncio.Event().wait()

    async def prepare(self, driver: Driver, who: str, threads: int) -> ProcessInfo:
        """Make this process like the driver's, and return its pid and host.

        Args:
            who: name of this process in messages, such as ``policy rank 0``.
            threads: number of CPU threads of torch.

        Raises:
            ConfigError: the driver's working directory or a file in it does not exist on this machine.
            FingerprintMismatch: this process has other plugins, versions or files than the driver.
        """
        self._plugins = become_like(driver, who, threads)
        return ProcessInfo(pid=os.getpid(), host=socket.gethostname())
