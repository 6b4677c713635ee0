"""Python's garbage collector in a long run: objects that are alive once the run goes steadily are not searched again.

Python searches all objects for garbage whenever the young ones that stayed alive are a quarter of the old ones. With
torch, compiled layers and a tokenizer there are millions of old ones, none of which will ever be garbage, and a search
takes 0.2 to 0.5 s in the middle of a step (H200 host: 2 of 12 steps of 8.6 s). Young objects are searched as before.
"""

from __future__ import annotations

import gc
import time
from types import TracebackType
from typing import Self

SETTLED_S = 10.0
"""Seconds of steps after which a run goes steadily. A shorter run is not worth the one search that comes before."""


class OldObjects:
    """Objects that a process no longer searches for garbage, from some step to the end of the context. A process that
    ends with the run, such as a rank under Ray, needs no context.

    The collector of the process is left alone where someone else has switched it off or frozen objects.
    """

    def __init__(self) -> None:
        self._began: float | None = None
        self._frozen = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._frozen:
            gc.unfreeze()
            self._frozen = False

    def step_begins(self) -> None:
        """Collect the garbage once, and leave what is alive out from now on, if steps have gone on for long enough."""
        now = time.perf_counter()
        if self._began is None:
            self._began = now
        if self._frozen or now - self._began < SETTLED_S:
            return
        if gc.isenabled() and not gc.get_freeze_count():
            gc.collect()
            gc.freeze()
            self._frozen = True
