"""Place of an environment's server, and what is known of it: asked once for each address in a process."""

from __future__ import annotations

import threading
from collections.abc import Callable

from rlhf_core import ConfigError

from .address import Address, address_of
from .config import OpenEnvConfig
from .http import Limits
from .served import Served, served_by
from .servers import StartedServer, started_server

_KNOWN: dict[Address, Served] = {}
_LOCK = threading.Lock()


class OpenEnvPlace:
    """A running server, or one that is started when it is first needed.

    Raises:
        ConfigError: the options name no server or several, or one that cannot be.
    """

    def __init__(self, config: OpenEnvConfig) -> None:
        given = [name for name in ("url", "app", "command") if getattr(config, name)]
        if len(given) != 1:
            raise ConfigError(
                f"openenv: expected one of url, app and command; got {' and '.join(given) or 'none'}",
                code="environment/several-places",
            )
        if config.bearer_file and not config.url:
            raise ConfigError(
                "openenv: bearer_file is for a running server; expected url beside it",
                code="environment/token-without-url",
            )
        self.limits = Limits(
            answer_s=config.answer_s, max_bytes=int(config.max_message_mib * 2**20)
        )
        self._address: Callable[[], Address]
        self._started: StartedServer | None = None
        if config.url:
            fixed = address_of(config.url, config.bearer_file)
            self._address = lambda: fixed
        else:
            self._started = started_server(config)
            self._address = self._started.address

    def find(self) -> tuple[Address, Served]:
        """Return the server's address, and what it says of its environment. It blocks, longest while a server starts.

        Raises:
            RolloutError: it does not start, cannot be reached, or says nonsense.
        """
        address = self._address()
        with _LOCK:
            known = _KNOWN.get(address)
        if known is None:
            known = served_by(address, self.limits)
            with _LOCK:
                _KNOWN[address] = known
        return address, known

    def has_died(self) -> bool:
        """Return whether the server can be started again after it could not be reached. It blocks for a moment."""
        return self._started is not None and self._started.has_died()
