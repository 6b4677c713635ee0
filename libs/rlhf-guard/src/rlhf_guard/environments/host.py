"""Host of one environment that runs elsewhere: its places, to which episodes go in turn, and their restarts."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field

from rlhf_config.isolation import IsolationOptions
from rlhf_core.component import ComponentRef
from rlhf_core.errors import RolloutError

from .connection import Connection
from .episode import IsolatedEnvironment
from .places import EpisodePlace, places_of

log = logging.getLogger(__name__)


class EnvironmentHost:
    """Makes environments whose episodes run in worker processes or at servers.

    Args:
        name: the environment's name in the run.
        environment: the component, by the name that it has where it runs.
        origin: distribution and version, for messages, until a worker tells its own.

    Raises:
        ConfigError: the options name an interpreter, address or token that is not there.
    """

    def __init__(
        self, name: str, environment: ComponentRef, origin: str, options: IsolationOptions
    ) -> None:
        self.name = name
        self.origin = origin
        self.options = options
        self._environment = environment
        self._slots = [_Slot(place) for place in places_of(environment, options)]
        self._next = 0
        self._restarts_left = options.restarts
        self._closed = False

    def twin(self) -> EnvironmentHost:
        """Return another host of the same environment, with workers of its own, for another event loop."""
        return EnvironmentHost(self.name, self._environment, self.origin, self.options)

    def make(self) -> IsolatedEnvironment:
        """Return the environment of one episode. Its ``reset`` chooses a worker."""
        return IsolatedEnvironment(self)

    async def start(self) -> None:
        """Start the first worker, so that a missing package is found before a model is loaded.

        Raises:
            RLHFError: it cannot be started, or lacks the environment.
        """
        await self._opened(self._slots[0])

    async def connection(self) -> tuple[Connection, str]:
        """Return the connection of the next worker, started if need be, and words for the worker.

        Raises:
            RLHFError: it cannot be started, the host is closed, or workers were restarted too often.
        """
        slot = self._slots[self._next % len(self._slots)]
        self._next += 1
        return await self._opened(slot), slot.place.label

    async def close(self) -> None:
        """End all workers and connections."""
        self._closed = True
        await asyncio.gather(*(slot.place.close() for slot in self._slots))

    async def _opened(self, slot: _Slot) -> Connection:
        async with slot.opening:
            if self._closed:
                raise RolloutError(
                    f"environment {self.name} is closed, because the run ends",
                    code="environment/closed",
                )
            if slot.connection is not None and slot.connection.usable:
                return slot.connection
            if slot.connection is not None:
                self._count_restart(slot)
            slot.connection, greeting = await slot.place.open()
            if isinstance(origin := greeting.get("origin"), str):
                self.origin = origin[:200]
            return slot.connection

    def _count_restart(self, slot: _Slot) -> None:
        if self._restarts_left == 0:
            raise RolloutError(
                f"environment {self.name} ({self.origin}): {slot.place.label} ended, and workers were started again "
                f"{self.options.restarts} times before. If this is to be expected, raise --env.{self.name}.restarts",
                code="environment/restarted-too-often",
            )
        self._restarts_left -= 1
        log.warning(
            "environment %s: %s ended and is started again; %d restarts are left",
            self.name,
            slot.place.label,
            self._restarts_left,
        )


@dataclass(slots=True)
class _Slot:
    place: EpisodePlace
    connection: Connection | None = None
    opening: asyncio.Lock = field(default_factory=asyncio.Lock)
