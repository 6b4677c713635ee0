"""Several engines with the same weights as one: a request goes to the engine with the fewest completions in flight."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rlhf_core import ConfigError, RolloutError
from rlhf_core.contracts import Completion, Engine, GenerationRequest


class EnginePool:
    """Implements ``Generator``.

    An engine that fails a request which another one answers gets no more requests: it has died, since a request that
    cannot be served fails everywhere.
    """

    def __init__(self, engines: Sequence[Engine]) -> None:
        if not engines:
            raise ConfigError(
                "a pool of engines: expected at least one engine; got none", code="engine/none"
            )
        self.engines = tuple(engines)
        self._in_flight = [0] * len(engines)
        """Number of completions in flight with each engine."""
        self._lost: set[int] = set()

    async def generate(self, request: GenerationRequest) -> list[Completion]:
        """Return one completion per seed, in the order of the seeds, from the first engine that gives them.

        Raises:
            RolloutError: all engines failed; the error is that of the first one.
        """
        errors: dict[int, RolloutError] = {}
        while (index := self._next(errors)) is not None:
            self._in_flight[index] += len(request.seeds)
            try:
                completions = await self.engines[index].generate(request)
            except RolloutError as error:
                errors[index] = error
            else:
                self._lose(errors)
                return completions
            finally:
                self._in_flight[index] -= len(request.seeds)
        first, *others = errors.values()
        for other in others:
            first.add_note(f"Another engine: {other}")
        raise first

    def _next(self, failed: dict[int, RolloutError]) -> int | None:
        """Return the engine that is asked next; None if all that live have failed."""
        left = set(range(len(self.engines))) - failed.keys() - self._lost
        return min(sorted(left), key=lambda index: self._in_flight[index], default=None)

    def _lose(self, failed: dict[int, RolloutError]) -> None:
        for index in failed.keys() - self._lost:
            self._lost.add(index)
            left = len(self.engines) - len(self._lost)
            print(
                f"engine {index} of {len(self.engines)} is lost, {left} left: {failed[index]}",
                file=sys.stderr,
                flush=True,
            )
