"""Python's garbage collector in a long run: objects that are alive once the run goes steadily are not searched again.

Python searches all objects for garbage whenever the young ones that stayed alive are a quarter of the old ones. With
torch, compiled layers and a tokenizer there are millions of old ones, none of which will ever be garbage, and a search
takes 0.2 to 0.5 s in the middle of a step (H200 host: 2 of 12 steps of 8.6 s). Young objects are searched as before.
"""

from __future__ import annotations

import gc
import time

SETTLED_S = 10.0
"""Seconds of steps after which a run goes steadily. A shorter run is not worth the one search that comes before."""


class OldObjects:
    """Objects that a process no longer searches for garbage, from some step until ``close``. A process that ends with
    the run, such as a rank under Ray, needs no ``close``.

    The collector of the process is left alone where someone else has switched it off or frozen objects.
    """

    def __init__(self) -> None:
        self._began: float | None = None
        self._frozen: bool | None = None
        """Whether objects were frozen here; None: steps have not gone on for long enough to decide it."""

    def step_begins(self) -> None:
        """Collect the garbage and leave what is alive out from now on, once steps have gone on for long enough."""
        now = time.perf_counter()
        if self._began is None:
            self._began = now
        if self._frozen is None and now - self._began >= SETTLED_S:
            # Decided once: Python counts frozen objects one by one.
            self._frozen = gc.isenabled() and not gc.get_freeze_count()
            if self._frozen:
                gc.collect()
                gc.freeze()

    def close(self) -> None:
        """Have all objects searched again."""
        if self._frozen:
            gc.unfreeze()
            self._frozen = False
