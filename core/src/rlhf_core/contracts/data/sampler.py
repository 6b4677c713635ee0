"""Prompt samplers: which prompts a run draws next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@runtime_checkable
class PromptSet(Protocol):
    """The training prompts of a run, by index."""

    @property
    def indices(self) -> NDArray[np.int64]:
        """Indices of all prompts (P,), ascending; there may be gaps, where rows were skipped or held out."""

    @property
    def returning(self) -> bool:
        """True if an index is the same prompt in every epoch; False with tasks that environments make without end."""

    def __len__(self) -> int:
        """Return the number of draws that make an epoch; with ``data.probabilities`` fewer than there are prompts."""

    def order(self, epoch: int) -> NDArray[np.int64]:
        """Return the indices of an epoch in the order in which a run without a sampler draws them."""

    def row(self, index: int) -> Mapping[str, Any]:
        """Return the data row of a prompt, by its original column names.

        Raises:
            DataError: the row cannot be read.
        """

    def generator(self, *counters: int) -> np.random.Generator:
        """Return a generator that is a function of the run's seed and the counters: the only source of randomness."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawRequest:
    """A request for the next prompts."""

    count: int
    """Number of prompts to draw, at least 1."""
    taken: int
    """Number of prompts that the run has drawn before."""
    step: int
    """Step in which they are drawn, from 1; where generation runs ahead, a later one trains on them."""
    in_flight: frozenset[int] = frozenset()
    """Indices of the prompts that were drawn and whose results are not known yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptResult:
    """Rewards of one prompt's episodes, before shapers and filters."""

    index: int
    """Index of the prompt."""
    epoch: int
    """Number of this draw of the prompt: with every draw of it a higher one."""
    step: int
    """Step in which the result came in."""
    rewards: tuple[float, ...]
    """Whole reward of each episode, turn rewards included; at least one. Episodes that were left out have none."""


class PromptSampler(Protocol):
    """Decides which prompts a run draws.

    All state is in ``state_dict``, which each checkpoint holds; a draw is a function of that state, the request and the
    run's randomness (``PromptSet.generator``). So a resumed run draws what the uninterrupted one would have drawn.
    """

    def begin(self, prompts: PromptSet) -> None:
        """Take the run's prompts, once, before anything else is asked.

        Raises:
            ConfigError: the sampler cannot work with them.
            DataError: a row lacks what the sampler looks at.
        """

    def draw(self, request: DrawRequest) -> Sequence[int]:
        """Return the indices of the next ``count`` prompts. A prompt may be drawn any number of times."""

    def note(self, results: Sequence[PromptResult]) -> None:
        """Take results, each once. Those of groups that were dropped as too old never come.

        In which order the results of different prompts come, at once or in parts, is a matter of timing and must not
        count.
        """

    def state_dict(self) -> dict[str, Any]:
        """Return the sampler's state for a checkpoint, as JSON types."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from ``state_dict`` of a checkpoint; ``begin`` was called before."""
