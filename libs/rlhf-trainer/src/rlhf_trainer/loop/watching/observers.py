"""The run's observers. One that fails is switched off, as a plugin's observer hooks are, and the run goes on."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from rlhf_config.resolved import ResolvedOptions
from rlhf_core.errors import PluginError
from rlhf_core.observer import EndRun, Observer

log = logging.getLogger(__name__)

ASKED = frozenset({"step_end", "eval_end"})
"""Events at which an observer may end the run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchingObserver:
    """An observer of the run, and who made it."""

    name: str
    """Qualified name: ``plugin:component``."""
    label: str
    """Name in messages: component, distribution and version."""
    observer: Observer


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """The end of a run for which an observer asked."""

    name: str
    """Qualified name of the observer."""
    message: str
    """``ended by OBSERVER: REASON``, in one line."""


def build_observers(resolved: ResolvedOptions[Any]) -> list[WatchingObserver]:
    """Return the run's observers, which have heard of nothing yet.

    Raises:
        PluginError: a component is no ``Observer``.
        RLHFError: one cannot be built.
    """
    found = []
    for selection in resolved.selections.get("observers.use", ()):
        registered = selection.registered
        observer = registered.build(selection.options)
        label = f"{registered.name} ({registered.origin})"
        if not isinstance(observer, Observer):
            raise PluginError(
                f"--observers.use {label}: expected an observer, got {type(observer).__name__}; derive it from "
                "rlhf_core.contracts.Observer"
            )
        found.append(WatchingObserver(name=registered.qualified, label=label, observer=observer))
    return found


class Observers:
    """All observers of a run. No method but ``load`` raises."""

    def __init__(self, observers: Sequence[WatchingObserver]) -> None:
        self._watching = list(observers)
        self._ending: Ending | None = None

    @property
    def ending(self) -> Ending | None:
        """The first wish to end the run; None: there was none."""
        return self._ending

    def tell(self, event: str, **arguments: Any) -> None:
        """Call the method ``event`` of each observer. ``metrics`` are given read-only, since all get the same."""
        if "metrics" in arguments:
            arguments["metrics"] = MappingProxyType(arguments["metrics"])
        for watching in list(self._watching):
            self._attempt(
                watching,
                event,
                lambda one: self._hear(one, event, getattr(one.observer, event)(**arguments)),
            )

    def _hear(self, watching: WatchingObserver, event: str, answer: Any) -> None:
        if answer is None:
            return
        if event not in ASKED or not isinstance(answer, EndRun):
            expected = "EndRun or None" if event in ASKED else "None"
            raise PluginError(f"expected {expected} from {event}, got {answer!r:.200}")
        reason = " ".join(str(answer.reason).split())
        if not reason:
            raise PluginError(f"expected a reason from {event}, got an empty one")
        if self._ending is None:
            self._ending = Ending(
                name=watching.name, message=f"ended by {watching.label}: {reason}"
            )

    def state(self) -> dict[str, Any]:
        """Return the state of each observer that is not switched off, by qualified name, as plain JSON values."""
        found: dict[str, Any] = {}

        def save(watching: WatchingObserver) -> None:
            text = json.dumps(watching.observer.state_dict(), allow_nan=False)
            found[watching.name] = json.loads(text)

        for watching in list(self._watching):
            self._attempt(watching, "state_dict", save)
        return found

    def load(self, states: Mapping[str, Any], restoring: Callable[[str], Any]) -> None:
        """Give observers their states. Those without one, which joined the run now, begin anew.

        Args:
            restoring: returns a context in which an error of the observer, by its label, is translated.
        """
        for watching in self._watching:
            if watching.name in states:
                with restoring(watching.label):
                    watching.observer.load_state_dict(states[watching.name])

    def _attempt(
        self, watching: WatchingObserver, method: str, call: Callable[[WatchingObserver], None]
    ) -> None:
        try:
            call(watching)
        except Exception:
            log.exception(
                "observer %s failed in %s and is switched off for the rest of this run",
                watching.label,
                method,
            )
            self._watching.remove(watching)
