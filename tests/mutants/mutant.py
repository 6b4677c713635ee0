"""A bug that somebody published, and how it is put into our code for a moment."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from rlhf_core.plugins import Plugins
from rlhf_testing.conformance import Check, CheckOutcome, Subject, applying, subject
from rlhf_testing.conformance.subject import outcome_of

Wrap = Callable[[Callable[..., Any]], Callable[..., Any]]
"""From the right function to the wrong one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One bug. Exactly one function or component is changed."""

    bug: str
    source: str
    """Who shipped it: project and number of the issue or pull request, or the version that has it."""
    hook: str
    component: str
    """Which of our components the kit is run on."""
    target: str = ""
    """``module:attribute`` that is replaced; empty: the component itself is wrapped."""
    wrap: Wrap
    options: dict[str, Any] = field(default_factory=dict)
    also: tuple[Check, ...] = ()
    """Checks beyond the kit, for bugs that break no promise of the contract: another formula."""

    def checked(self, plugins: Plugins) -> Subject:
        """Return our component, as it is."""
        return subject(plugins.get(self.hook, self.component), **self.options)

    def catches(self, plugins: Plugins) -> Iterator[CheckOutcome]:
        """Yield the outcome of each check that fails with the bug and passes without it, one check after the other."""
        right = self.checked(plugins)
        tried = right if self.target else self._wrong(right)
        for check in (*applying(self.hook, tried), *self.also):
            with _replaced(self.target, self.wrap) if self.target else nullcontext():
                outcome = outcome_of(check, tried, self.hook, {})
            # A crash would be a bug in the mutant: only a promise that was seen to be broken counts.
            if outcome.error == "AssertionError" and self._holds(check, right):
                yield outcome

    def _holds(self, check: Check, right: Subject) -> bool:
        return outcome_of(check, right, self.hook, {}).status == "ok"

    def _wrong(self, right: Subject) -> Subject:
        """Return the component with the bug around it."""
        return Subject(
            label=right.label,
            make=lambda: self.wrap(right.make()),
            needs=right.needs,
            provides=right.provides,
            conflicts=right.conflicts,
            config=right.config,
            origin=None,
        )


def place_of(target: str) -> tuple[Any, str]:
    """Return the module or class that has a target, and its name there."""
    module_name, _, path = target.partition(":")
    holder: Any = importlib.import_module(module_name)
    *parents, name = path.split(".")
    for parent in parents:
        holder = getattr(holder, parent)
    return holder, name


@contextmanager
def _replaced(target: str, wrap: Wrap) -> Iterator[None]:
    holder, name = place_of(target)
    right = holder.__dict__[name]
    setattr(holder, name, wrap(getattr(holder, name)))
    try:
        yield
    finally:
        setattr(holder, name, right)
