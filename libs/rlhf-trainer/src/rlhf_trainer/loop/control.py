"""The contract between the loop and whoever steers a run from the same process, such as a notebook.

The loop stops at ``before_step`` as often as there are steps, with everything recorded that came before. There a run
may be held, its state may be changed, and it may be told to end.
"""

from __future__ import annotations

import asyncio
from typing import Any, Protocol

from .state import RunState


class Control(Protocol):
    """Steers one run. The loop calls it from its own thread; it may be told what to do from others."""

    @property
    def stop_reason(self) -> str | None:
        """Reason to end the run at the next step, in words that follow "stopped by"; None: go on."""

    def began(self, task: asyncio.Task[Any]) -> None:
        """Take the run's task, once, before anything is built. Cancelling it ends the run at once, as failed."""

    async def before_step(self, state: RunState) -> None:
        """Return when the next step may be done. ``state`` is what a checkpoint written now would hold."""
