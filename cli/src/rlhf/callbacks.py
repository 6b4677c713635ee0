"""Callbacks of a Python program as observers of one run, and the record of its newest step."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlhf_core import ConfigError, hookimpl
from rlhf_core.contracts import EndRun, Observer, RolloutSample, RunInfo, RunResult
from rlhf_core.hookspecs import OBSERVER_HOOKS
from rlhf_core.plugins import GIVEN, Plugins

from .given_objects import name_of

_PREFIX = "rlhf_"
_OF_A_FUNCTION = "step_end"
"""Event that a callback hears which is a plain function."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DoneStep:
    """One step that a run has done."""

    number: int
    """From 1, over the whole run, resumed runs included."""
    metrics: Mapping[str, float]
    """Everything that ``metrics.jsonl`` records of the step; times as ``timing/...``."""
    samples: Sequence[RolloutSample] = field(default=())
    """A few of the step's episodes as text; as many as ``log.samples``."""
    evaluation: Mapping[str, float] = field(default_factory=dict)
    """``eval/...`` of the weights after the step; empty if it was not evaluated."""


def add_callback(plugins: Plugins, callback: Any, number: int) -> None:
    """Have a callback hear the events of a run. One that raises is reported once and switched off; the run goes on.

    Args:
        callback: a function of ``step`` and ``metrics``, or an object with methods that are named like the observer
            hooks without their prefix: ``run_start``, ``step_end``, ... Each takes some of its hook's arguments, by
            name.
        number: position among the callbacks, from 0.

    Raises:
        ConfigError: it has no such method, or one takes something else; or it is an observer.
    """
    label = f"callbacks[{number}]"
    if isinstance(callback, Observer):
        raise ConfigError(
            f"{label}: got the observer {name_of(callback)}, whose state belongs into checkpoints. Give it as "
            'observers={"use": [...]}.',
            code="observer/with-state",
        )
    events = {hook.removeprefix(_PREFIX): _parameters(hook) for hook in OBSERVER_HOOKS}
    if inspect.isroutine(callback) or not any(hasattr(callback, name) for name in events):
        if not callable(callback):
            raise ConfigError(
                f"{label}: got {type(callback).__name__}; expected a function of step and metrics, or an object with "
                f"some of the methods {', '.join(events)}",
                code="observer/wrong-kind",
            )
        methods: dict[str, Callable[..., Any]] = {_OF_A_FUNCTION: callback}
    else:
        methods = {name: getattr(callback, name) for name in events if hasattr(callback, name)}
    wanted = {
        name: _accepted(method, events[name], f"{label}: {name_of(callback)} ({name})")
        for name, method in methods.items()
    }
    plugins.manager.register(
        _Observer(methods, wanted), name=f"{GIVEN}:{name_of(callback)} ({label})"
    )


def _parameters(hook: str) -> tuple[str, ...]:
    from rlhf_core import hookspecs

    return tuple(inspect.signature(getattr(hookspecs, hook)).parameters)


def _accepted(method: Callable[..., Any], given: Sequence[str], label: str) -> tuple[str, ...]:
    """Return those of the given arguments that a method takes."""
    try:
        parameters = inspect.signature(method).parameters.values()
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"{label} has no signature that can be read: {error}", code="observer/contract"
        ) from error
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return tuple(given)
    named = [
        parameter for parameter in parameters if parameter.kind is not parameter.VAR_POSITIONAL
    ]
    for parameter in named:
        fits = parameter.name in given and parameter.kind is not parameter.POSITIONAL_ONLY
        if not fits and (parameter.default is parameter.empty):
            raise ConfigError(
                f"{label} takes {parameter.name!r}; expected some of {', '.join(given)}, which are passed by name",
                code="observer/unknown-arguments",
            )
    return tuple(parameter.name for parameter in named if parameter.name in given)


class _Observer:
    """The observer hooks of one callback."""

    def __init__(
        self, methods: Mapping[str, Callable[..., Any]], wanted: Mapping[str, Sequence[str]]
    ) -> None:
        self._methods = methods
        self._wanted = wanted

    def _tell(self, event: str, **arguments: Any) -> None:
        if (method := self._methods.get(event)) is not None:
            answer = method(**{name: arguments[name] for name in self._wanted[event]})
            if isinstance(answer, EndRun):
                raise ConfigError(
                    "a callback ends no run. Derive it from rlhf_core.contracts.Observer and give it as "
                    'observers={"use": [...]}, or call run.stop() on what rlhf.start returned',
                    code="observer/contract",
                )

    @hookimpl
    def rlhf_run_start(self, run: RunInfo) -> None:
        self._tell("run_start", run=run)

    @hookimpl
    def rlhf_rollout_end(
        self, step: int, samples: Sequence[RolloutSample], metrics: Mapping[str, float]
    ) -> None:
        self._tell("rollout_end", step=step, samples=samples, metrics=metrics)

    @hookimpl
    def rlhf_step_end(self, step: int, metrics: Mapping[str, float]) -> None:
        self._tell("step_end", step=step, metrics=metrics)

    @hookimpl
    def rlhf_eval_end(self, step: int, metrics: Mapping[str, float]) -> None:
        self._tell("eval_end", step=step, metrics=metrics)

    @hookimpl
    def rlhf_checkpoint_saved(self, step: int, path: Path) -> None:
        self._tell("checkpoint_saved", step=step, path=path)

    @hookimpl
    def rlhf_run_end(self, result: RunResult) -> None:
        self._tell("run_end", result=result)


class StepRecorder:
    """Observer that keeps what is needed for the newest step, and the length of the run."""

    def __init__(self) -> None:
        self.total_steps: int | None = None
        """None: the run has not been built yet."""
        self.start_step = 0
        self._number: int | None = None
        self._metrics: Mapping[str, float] = {}
        self._samples: Sequence[RolloutSample] = ()
        self._evaluation: Mapping[str, float] = {}

    def take(self) -> DoneStep | None:
        """Return the newest step, once; None if there is no new one."""
        if self._number is None:
            return None
        step = DoneStep(
            number=self._number,
            metrics=self._metrics,
            samples=self._samples,
            evaluation=self._evaluation,
        )
        self._number, self._samples, self._evaluation = None, (), {}
        return step

    @hookimpl
    def rlhf_run_start(self, run: RunInfo) -> None:
        self.total_steps, self.start_step = run.total_steps, run.start_step

    @hookimpl
    def rlhf_rollout_end(self, step: int, samples: Sequence[RolloutSample]) -> None:
        self._samples = tuple(samples)

    @hookimpl
    def rlhf_step_end(self, step: int, metrics: Mapping[str, float]) -> None:
        self._number, self._metrics = step, dict(metrics)

    @hookimpl
    def rlhf_eval_end(self, step: int, metrics: Mapping[str, float]) -> None:
        self._evaluation = dict(metrics)
