"""The side of an endpoint under test: episodes in front of a given policy, and what was captured of them."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from .policy import ScriptedPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class CapturedRow:
    """One sequence that a trainer would get."""

    token_ids: tuple[int, ...]
    mask: tuple[bool, ...]
    """True at the tokens that train, one for each token."""
    logprobs: tuple[float, ...]
    """Log-probs of the tokens that train, in order."""
    versions: tuple[int, ...] | None = None
    """Version of the weights that sampled each of them; None: the endpoint records none, and none is compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CapturedTrace:
    """An episode as the endpoint captured it."""

    rows: tuple[CapturedRow, ...]
    """All that trains."""
    num_paths: int
    """Conversations that it tells apart: paths whose requests go on with each other's tokens."""


class OpenEpisode(Protocol):
    """An episode while its agent plays."""

    @property
    def root_url(self) -> str:
        """Address without ``/v1``."""

    @property
    def api_key(self) -> str: ...

    @property
    def model(self) -> str:
        """Name of the policy."""

    def finish(self) -> CapturedTrace:
        """End the episode, and return what was captured."""


class EndpointUnderTest(Protocol):
    """An endpoint."""

    @property
    def name(self) -> str:
        """Name and version, for the report."""

    @property
    def temperature(self) -> float:
        """Temperature at which the policy has to sample, whatever a client asks for."""

    def episode(self, policy: ScriptedPolicy) -> AbstractContextManager[OpenEpisode]:
        """Open an episode whose requests the policy answers."""
