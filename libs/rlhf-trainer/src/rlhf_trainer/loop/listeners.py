"""Listeners of a run: loggers, which copy it to other places, observers, which may end it, and hooks of plugins.

One that fails is switched off, and the run goes on.
"""

from __future__ import annotations

import logging
import queue
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from rlhf_config.resolved import ResolvedOptions
from rlhf_core.contracts.logger import Logger
from rlhf_core.errors import PluginError
from rlhf_core.observer import EndRun, Observer, RolloutSample, RunInfo, RunResult
from rlhf_core.plugins import Plugins
from rlhf_core.problem import log_switched_off
from rlhf_guard.parts import plain_state

log = logging.getLogger(__name__)

MAX_WAITING = 10_000
"""Number of calls that may wait for a logger; more would fill the driver's memory."""

_USER_OF_URL = re.compile(r"(?<=://)[^/@\s]+@")
"""User and password in a URL."""
Call = tuple[str, tuple[Any, ...]]
"""Name of a method of ``Logger``, and its arguments."""


def build_loggers(resolved: ResolvedOptions[Any]) -> Mapping[str, Logger]:
    """Return the run's loggers by their qualified names, none of them started.

    Raises:
        MissingDependency: a logger's library is not installed.
        ConfigError: a logger lacks something that it needs before the first step, such as a key.
    """
    return {
        selection.registered.qualified: selection.build()
        for selection in resolved.selections.get("log.to", ())
    }


class Loggers:
    """All loggers of a run, seen from the loop. No method but ``wait`` blocks, and none raises."""

    def __init__(self, loggers: Mapping[str, Logger], *, samples_every: int, wait_s: float) -> None:
        self._threads = [LoggerThread(name, logger) for name, logger in loggers.items()]
        self._samples_every = samples_every
        self._wait_s = wait_s

    def start(self, run: RunInfo) -> None:
        """Start the threads, and tell the loggers of the run."""
        run = replace(run, config=without_credentials(run.config))
        for thread in self._threads:
            thread.begin()
        self._tell("start", run)

    def log_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Pass on the metrics of a step or of an evaluation."""
        self._tell("log_metrics", step, dict(metrics))

    def log_samples(self, step: int, samples: Sequence[RolloutSample]) -> None:
        """Pass on a step's samples, if this is a step whose samples are logged."""
        if samples and self._samples_every and step % self._samples_every == 0:
            self._tell("log_samples", step, tuple(samples))

    def finish(self, result: RunResult) -> None:
        """Tell the loggers how the run ended; it may have ended before ``start``."""
        self._tell("finish", result)
        for thread in self._threads:
            thread.end()

    def wait(self) -> None:
        """Wait until the loggers have worked through what they were told, but not longer than ``wait_s`` for all."""
        give_up = time.monotonic() + self._wait_s
        for thread in self._threads:
            if not thread.ended(max(0.0, give_up - time.monotonic())):
                log.warning(
                    "logger %s is still sending %g s after the end of the run, and is left alone; --log.wait_s sets "
                    "how long it may take",
                    thread.name,
                    self._wait_s,
                )

    def _tell(self, method: str, *arguments: Any) -> None:
        for thread in self._threads:
            thread.tell(method, *arguments)


class LoggerThread:
    """One logger, its thread, and the calls that wait for the thread."""

    def __init__(self, name: str, logger: Logger) -> None:
        self.name = name
        self._logger = logger
        self._calls: queue.Queue[Call | None] = queue.Queue()
        self._off = threading.Event()
        self._thread = threading.Thread(target=self._work, name=f"logger {name}", daemon=True)

    def begin(self) -> None:
        """Start the thread."""
        self._thread.start()

    def tell(self, method: str, *arguments: Any) -> None:
        """Leave a call for the thread. A logger that was not begun, or is switched off, gets none."""
        if not self._thread.is_alive() or self._off.is_set():
            return
        if self._calls.qsize() >= MAX_WAITING:
            log.error(
                "logger %s is %d calls behind and is switched off for the rest of this run",
                self.name,
                MAX_WAITING,
            )
            self._off.set()
            return
        self._calls.put((method, arguments))

    def end(self) -> None:
        """Let the thread end after the calls that wait."""
        self._calls.put(None)

    def ended(self, wait_s: float) -> bool:
        """Wait for the thread's end, and return whether it came; if not, the calls that wait are dropped."""
        if self._thread.ident is None:
            return True
        self._thread.join(wait_s)
        if self._thread.is_alive():
            self._off.set()
        return not self._thread.is_alive()

    def _work(self) -> None:
        while (call := self._calls.get()) is not None and not self._off.is_set():
            method, arguments = call
            try:
                getattr(self._logger, method)(*arguments)
            except (
                BaseException
            ) as error:  # wandb raises KeyboardInterrupt here, too, when its input ends
                # After the end of the run, when nobody waits for the logger any more, its errors are nobody's either.
                if not self._off.is_set():
                    log_switched_off(log, error, "logger %s failed in %s", self.name, method)
                self._off.set()


def without_credentials(tree: Any) -> Any:
    """Return a copy of nested plain values in which ``***`` stands for user and password of each URL."""
    if isinstance(tree, Mapping):
        return {key: without_credentials(value) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [without_credentials(value) for value in tree]
    return _USER_OF_URL.sub("***@", tree) if isinstance(tree, str) else tree


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
        observer = selection.build()
        label = f"{registered.name} ({registered.origin})"
        if not isinstance(observer, Observer):
            raise PluginError(
                f"--observers.use {label}: expected an observer, got {type(observer).__name__}; derive it from "
                "rlhf_core.contracts.Observer",
                code="observer/wrong-kind",
            )
        found.append(WatchingObserver(name=registered.qualified, label=label, observer=observer))
    return found


def observe(plugins: Plugins, hook: str, **arguments: Any) -> None:
    """Call an observer hook of all plugins. One that raises is logged and switched off, and the run goes on."""
    for implementation in list(getattr(plugins.manager.hook, hook).get_hookimpls()):
        wanted = {name: arguments[name] for name in implementation.argnames}
        try:
            implementation.function(**wanted)
        except Exception as error:
            name = implementation.plugin_name
            log_switched_off(log, error, "plugin %s failed in %s", name, hook)
            plugins.manager.unregister(implementation.plugin)


class Observers:
    """All observers of a run. No method but ``load`` raises."""

    def __init__(self, observers: Sequence[WatchingObserver]) -> None:
        self._watching = list(observers)
        self.ending: Ending | None = None
        """The first wish to end the run; None: there was none."""

    def tell(self, event: str, **arguments: Any) -> None:
        """Call the method ``event`` of each observer. ``metrics`` are given read-only, since all get the same."""
        if "metrics" in arguments:
            arguments["metrics"] = MappingProxyType(arguments["metrics"])
        for watching in list(self._watching):
            with self._switched_off_by_errors(watching, event):
                self._hear(watching, event, getattr(watching.observer, event)(**arguments))

    def _hear(self, watching: WatchingObserver, event: str, answer: Any) -> None:
        if answer is None:
            return
        if event not in ASKED or not isinstance(answer, EndRun):
            expected = "EndRun or None" if event in ASKED else "None"
            problem = f"expected {expected} from {event}, got {answer!r:.200}"
            raise PluginError(problem, code="observer/wrong-answer")
        reason = " ".join(str(answer.reason).split())
        if not reason:
            problem = f"expected a reason from {event}, got an empty one"
            raise PluginError(problem, code="observer/no-reason")
        if self.ending is None:
            self.ending = Ending(name=watching.name, message=f"ended by {watching.label}: {reason}")

    def state(self) -> dict[str, Any]:
        """Return the state of each observer that is not switched off, by qualified name, as plain JSON values."""
        found: dict[str, Any] = {}
        for watching in list(self._watching):
            with self._switched_off_by_errors(watching, "state_dict"):
                found[watching.name] = plain_state(watching.label, watching.observer.state_dict())
        return found

    def load(self, states: Mapping[str, Any], restoring: Callable[[str], Any]) -> None:
        """Give observers their states. Those without one, which joined the run now, start over.

        Args:
            restoring: returns a context in which an error of the observer, by its label, is translated.
        """
        for watching in self._watching:
            if watching.name in states:
                with restoring(watching.label):
                    watching.observer.load_state_dict(states[watching.name])

    @contextmanager
    def _switched_off_by_errors(self, watching: WatchingObserver, method: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            log_switched_off(log, error, "observer %s failed in %s", watching.label, method)
            self._watching.remove(watching)
