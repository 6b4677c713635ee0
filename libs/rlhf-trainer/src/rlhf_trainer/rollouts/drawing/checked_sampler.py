"""A chosen prompt sampler, whose mistakes are errors that name it, its plugin and the version."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from rlhf_core.contracts.data.sampler import DrawRequest, PromptResult, PromptSampler, PromptSet
from rlhf_core.errors import PluginError, RLHFError

LONGEST_RUN = 32
"""Draws of one prompt in a row, others being there, that are taken for a mistake: the run would learn one prompt."""

ResultT = TypeVar("ResultT")


class CheckedSampler:
    """See ``contracts.PromptSampler``.

    Args:
        sampler: the sampler as its plugin made it.
        who: words for messages: option, name, distribution and version.
    """

    def __init__(self, sampler: PromptSampler, who: str) -> None:
        self._sampler = sampler
        self._who = who
        self._last: int | None = None
        self._run = 0

    def begin(self, prompts: PromptSet) -> None:
        self._indices = prompts.indices
        self._call("begin", lambda: self._sampler.begin(prompts))

    def draw(self, request: DrawRequest) -> list[int]:
        """Return exactly as many indices as were asked for.

        Raises:
            PluginError: the sampler returned something else, raised, or draws one prompt for ever.
        """
        given: Any = self._call("draw", lambda: self._sampler.draw(request))
        if not isinstance(given, Iterable):
            raise PluginError(
                f"{self._who}: expected {request.count} prompts for step {request.step}, got {given!r:.60}. draw() has "
                "to return a list of indices of prompts."
            )
        drawn = self._call("draw", lambda: list(given))
        if len(drawn) != request.count:
            raise PluginError(
                f"{self._who}: expected {request.count} prompts for step {request.step}, got "
                f"{len(drawn) or 'none'}. draw() has to return as many indices as it is asked for; the run has "
                f"{len(self._indices)} prompts, and each may be drawn again."
            )
        return [self._checked(index, request.step) for index in drawn]

    def note(self, results: Sequence[PromptResult]) -> None:
        self._call("note", lambda: self._sampler.note(results))

    def state_dict(self) -> dict[str, Any]:
        return self._call("state_dict", self._sampler.state_dict)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        # The caller names the checkpoint in what this raises.
        self._sampler.load_state_dict(state)

    def _call(self, method: str, call: Callable[[], ResultT]) -> ResultT:
        try:
            return call()
        except RLHFError:
            raise
        except Exception as error:  # a plugin may raise anything
            raise PluginError(
                f"{self._who}: {method}() raised {type(error).__name__}: {error}"
            ) from error

    def _checked(self, index: Any, step: int) -> int:
        if isinstance(index, bool) or not isinstance(index, int | np.integer):
            raise PluginError(
                f"{self._who}: expected indices of prompts for step {step}, whole numbers; got {index!r}"
            )
        position = int(np.searchsorted(self._indices, index))
        if position == len(self._indices) or self._indices[position] != index:
            raise PluginError(
                f"{self._who}: expected indices of prompts for step {step}, from PromptSet.indices; no prompt has the "
                f"index {index}. There are {len(self._indices)}, from {self._indices[0]} to {self._indices[-1]}; "
                "rows that were skipped or held out have none."
            )
        self._run = self._run + 1 if index == self._last else 1
        self._last = int(index)
        if self._run > LONGEST_RUN and len(self._indices) > 1:
            raise PluginError(
                f"{self._who}: drew prompt {index} {self._run} times in a row, up to step {step}; the run has "
                f"{len(self._indices)} prompts. To train on one prompt, give a data set with one row."
            )
        return self._last
