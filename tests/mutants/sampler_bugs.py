"""Bugs in prompt samplers: a run draws other prompts after a resume, or the same ones for ever."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from .mutant import Mutant

Function = Callable[..., Any]


class _Wrapped:
    """The right sampler; a subclass changes one method."""

    def __init__(self, right: Any) -> None:
        self.right = right

    def __getattr__(self, name: str) -> Any:
        return getattr(self.right, name)


class ForgetsItsState(_Wrapped):
    def state_dict(self) -> Any:
        return {"rates": {}}


class StateOfTheLastStep(_Wrapped):
    """The state is saved before the step's results are taken over."""

    def note(self, results: Any) -> None:
        self.saved = self.right.state_dict()
        self.right.note(results)

    def state_dict(self) -> Any:
        return self.saved


class KeysAsText(_Wrapped):
    """JSON makes text of whole numbers that are keys, and nobody turns them back."""

    def load_state_dict(self, state: Any) -> None:
        self.right._rates = dict(state["rates"])


class GlobalRandomness(_Wrapped):
    def draw(self, request: Any) -> Any:
        drawn = self.right.draw(request)
        random.shuffle(drawn)
        return drawn


class ShortAtTheEnd(_Wrapped):
    """No more than there are prompts, as at the end of an epoch with drop_last."""

    def draw(self, request: Any) -> Any:
        return self.right.draw(request)[: len(self.right._prompts.indices)]


class PositionsForIndices(_Wrapped):
    """Positions among the prompts that are left, where some rows were skipped."""

    def draw(self, request: Any) -> Any:
        indices = self.right._prompts.indices.tolist()
        return [indices.index(index) for index in self.right.draw(request)]


class ByArrival(_Wrapped):
    """Only the first half of the results that came together counts, which is a matter of timing."""

    def note(self, results: Any) -> None:
        self.right.note(results[: len(results) // 2])


class TheBestAlone(_Wrapped):
    """Always the prompt with the lowest rate, ties to the first: an argmin without any exploration."""

    def draw(self, request: Any) -> Any:
        rates = self.right._rates
        indices = self.right._prompts.indices.tolist()
        return [min(indices, key=lambda index: rates.get(index, 1.0))] * request.count


class ShufflesInPlace(_Wrapped):
    def draw(self, request: Any) -> Any:
        prompts = self.right._prompts
        prompts.generator(request.taken).shuffle(prompts.indices)
        return self.right.draw(request)


class WaitsForResults(_Wrapped):
    """Prompts in flight are not drawn, also where there are no others."""

    def draw(self, request: Any) -> Any:
        drawn = self.right.draw(request)
        return [index for index in drawn if index not in request.in_flight]


def _mutant(bug: str, source: str, wrong: type[_Wrapped]) -> Mutant:
    return Mutant(
        bug=bug,
        source=source,
        hook="rlhf_prompt_samplers",
        component="curriculum",
        wrap=wrong,
    )


MUTANTS = (
    _mutant(
        "pass rates are not in the checkpoint", "no issue cited: another order", ForgetsItsState
    ),
    _mutant(
        "the checkpoint has the pass rates before its own step",
        "no issue cited: off by one step",
        StateOfTheLastStep,
    ),
    _mutant(
        "prompts are text after a resume",
        "no issue cited: keys of JSON are text",
        KeysAsText,
    ),
    _mutant(
        "prompts are shuffled by the global generator",
        "no issue cited: order that no seed decides",
        GlobalRandomness,
    ),
    _mutant(
        "a draw ends with the epoch", "no issue cited: a batch that is too small", ShortAtTheEnd
    ),
    _mutant(
        "positions instead of indices, where rows were skipped",
        "no issue cited: other prompts than meant",
        PositionsForIndices,
    ),
    _mutant("results that came late do not count", "no issue cited: timing", ByArrival),
    _mutant("one prompt is drawn for ever", "no issue cited: an argmin", TheBestAlone),
    _mutant(
        "the run's list of prompts is shuffled in place",
        "the class of TRL#5147, a write into memory of others",
        ShufflesInPlace,
    ),
    _mutant(
        "nothing is drawn while all prompts are in flight",
        "no issue cited: an empty draw",
        WaitsForResults,
    ),
)
