"""Bugs in observers: a run ends at another step after a resume, or for no reason."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rlhf_core.contracts import EndRun, Observer

from .mutant import Mutant


class _Around(Observer):
    """The right observer; a subclass changes one method."""

    def __init__(self, right: Any) -> None:
        self.right = right

    def step_end(self, step: int, metrics: Mapping[str, float]) -> Any:
        return self.right.step_end(step, metrics)

    def eval_end(self, step: int, metrics: Mapping[str, float]) -> Any:
        return self.right.eval_end(step, metrics)

    def run_end(self, result: Any) -> None:
        self.right.run_end(result)

    def state_dict(self) -> dict[str, Any]:
        return dict(self.right.state_dict())

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.right.load_state_dict(state)


class CountsFromZero(_Around):
    """The counter of bad values is not restored."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.right.load_state_dict({**state, "since": 0})


class ForgivesAtEachCheckpoint(_Around):
    """Saving starts the count again."""

    def state_dict(self) -> dict[str, Any]:
        saved = super().state_dict()
        self.right._since = 0
        return saved


class SaysYes(_Around):
    """True, as a callback of Keras or fastai sets a flag."""

    def step_end(self, step: int, metrics: Mapping[str, float]) -> Any:
        return super().step_end(step, metrics) is not None or None


class WithoutAReason(_Around):
    def step_end(self, step: int, metrics: Mapping[str, float]) -> Any:
        return None if super().step_end(step, metrics) is None else EndRun(reason="")


class DropsNumbers(_Around):
    """What is no finite number is taken out of the dict that all observers get."""

    def step_end(self, step: int, metrics: Any) -> Any:
        for name in ("timing/step_s",):
            metrics.pop(name, None)
        return super().step_end(step, metrics)


def one_for_all_runs() -> Callable[[Any], Any]:
    """The counters belong to the module, not to the run."""
    kept: list[Any] = []

    def wrap(right: Any) -> Any:
        kept.append(right)
        return kept[0]

    return wrap


def _mutant(bug: str, source: str, wrap: Callable[[Any], Any]) -> Mutant:
    return Mutant(bug=bug, source=source, hook="rlhf_observers", component="early_stop", wrap=wrap)


MUTANTS = (
    _mutant(
        "patience starts again after a resume",
        "no issue cited: a counter that is not restored",
        CountsFromZero,
    ),
    _mutant(
        "each checkpoint starts patience again",
        "no issue cited: a reset",
        ForgivesAtEachCheckpoint,
    ),
    _mutant("an observer answers True", "no issue cited: a flag for an end", SaysYes),
    _mutant("a run is ended without a reason", "no issue cited: an empty text", WithoutAReason),
    _mutant(
        "an observer takes a metric away from the others",
        "the class of TRL#5147, a write into memory of others",
        DropsNumbers,
    ),
    _mutant(
        "two runs of a process share a counter",
        "no issue cited: one object for all runs",
        one_for_all_runs(),
    ),
)
