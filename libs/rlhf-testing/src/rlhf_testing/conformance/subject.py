"""Subjects of checks, checks, and their outcomes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar

from pydantic import ValidationError

from rlhf_core.called import CALLED_KINDS
from rlhf_core.component import Component, Config, Registered
from rlhf_core.errors import PluginError
from rlhf_core.hookspecs import COMPONENT_HOOKS
from rlhf_guard.parts import plain_state

AnswerT = TypeVar("AnswerT")
HANGS_AFTER_S = 600.0
"""Seconds after which a component that does not answer has failed its check, also on a busy machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A component with its options and its declarations."""

    label: str
    """Name of the component in reports."""
    make: Callable[[], Any]
    """Function that returns a fresh instance, so that checks share no state."""
    needs: frozenset[str] = frozenset()
    """Needs that the component and its option values declare; a check gives the component only these inputs."""
    provides: frozenset[str] = frozenset()
    conflicts: frozenset[str] = frozenset()
    config: Config = field(default_factory=Config)
    origin: Registered[Any] | None = None
    """Registered component; None for a bare factory."""

    def with_options(self, **options: Any) -> Subject:
        """Return the same component with other options, for checks that compare two."""
        assert self.origin is not None, f"{self.label} was given as a bare factory, without options"
        return subject(self.origin, **{**self.config.model_dump(), **options})


Source = Subject | Registered[Any] | Component[Any] | Callable[[], Any]
"""Form in which a component can be given to a check. A callable makes the component, and declares no needs."""


def subject(source: Source, /, label: str | None = None, **options: Any) -> Subject:
    """Return the subject that checks are called with.

    Args:
        source: a component as registered or described, or a callable that makes one.
        label: name in reports; None: the component's name.
        options: options of the component; an option that is left out has its default.

    Raises:
        pydantic.ValidationError: an option is unknown, out of range, or required and left out.
    """
    if isinstance(source, Subject):
        return source if label is None else replace(source, label=label)
    if isinstance(source, Component):
        source = Registered(source, "checked")
    if not isinstance(source, Registered):
        return Subject(label=label or str(getattr(source, "__name__", "component")), make=source)
    registered = source
    try:
        config = source.validate(options)
    except ValidationError as error:
        if required_options(source) - options.keys():
            error.add_note(f"Give the options in the test: {with_required_options(source)}")
        raise
    return Subject(
        label=label or registered.name,
        make=lambda: registered.build(config),
        needs=registered.component.needs | config.needed_by_options(),
        provides=registered.component.provides,
        conflicts=registered.component.conflicts,
        config=config,
        origin=registered,
    )


def required_options(registered: Registered[Any]) -> set[str]:
    """Return the options without which the component cannot be made."""
    fields = registered.component.config.model_fields
    return {name for name, info in fields.items() if info.is_required()}


def with_required_options(registered: Registered[Any]) -> str:
    """Return the code of a test that gives the component its required options."""
    given = ", ".join(f"{name}=..." for name in sorted(required_options(registered)))
    return f"rlhf_testing.conformance.subject(REGISTERED, {given})"


def _always(subject: Subject) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Check:
    """One promise of a contract. A call raises AssertionError, with the numbers, if the subject breaks the promise."""

    run: Callable[[Subject], str | None]
    """Function that may return what it found besides, such as the best of the answers that it tried."""
    applies: Callable[[Subject], bool] = _always
    """Function that returns whether the promise is one of the subject's."""
    usual: bool = False
    """Whether the property is usual for the kind, but no promise of the contract. A test has to announce a component
    without the property; ``run_checks`` and ``rlhf check`` only report it."""
    deadline_s: float = 300.0
    """Seconds in which ``rlhf env check`` expects a result, also on a busy machine; a check without one has failed."""
    rests_on: str = ""
    """Name of a check without which this one says nothing: where both fail, that one is to blame."""
    stands_alone: bool = False
    """Whether this check makes none of the calls that other checks make: one of those that does not return says nothing
    about this one."""

    @property
    def name(self) -> str:
        """Name of the check's function."""
        return self.run.__name__

    @property
    def promise(self) -> str:
        """First line of the check's documentation."""
        return (self.run.__doc__ or "").strip().partition("\n")[0]

    def __call__(self, subject: Subject) -> str | None:
        return self.run(subject)


def traits(
    applies: Callable[[Subject], bool] = _always, **others: Any
) -> Callable[[Callable[[Subject], str | None]], Check]:
    """Return a decorator for the function of a check with traits that most checks do not have, see ``Check``."""
    return lambda run: Check(run, applies, **others)


def checks_in(*modules: str) -> tuple[Check, ...]:
    """Return the checks that modules define, in order: their functions that are called ``check_...``."""
    found = [
        each if isinstance(each, Check) else Check(each)
        for module in modules
        for name, each in vars(sys.modules[module]).items()
        if name.startswith("check_")
    ]
    return tuple(check for check in found if check.run.__module__ in modules)


Status = Literal["ok", "FAILED", "expected", "differs"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckOutcome:
    """Outcome of one check of one component."""

    component: str
    kind: str
    check: str
    status: Status
    """``expected``: an announced failure; an announced failure that does not happen is ``FAILED``. ``differs``: a usual
    property that is no promise does not hold."""
    reason: str = ""
    error: str = ""
    """Type of the exception: ``AssertionError`` for a broken promise, another type for a component that failed."""

    @property
    def failed(self) -> bool:
        """Whether the check failed without an announcement."""
        return self.status == "FAILED"


def outcome_of(
    check: Check, tried: Subject, kind: str, announced: Mapping[str, str]
) -> CheckOutcome:
    """Return the outcome of one check; any exception of the component is a failure with that reason."""
    status: Status = "ok"
    reason = error_type = ""
    try:
        reason = check(tried) or ""
    except Exception as error:
        status, reason, error_type = "FAILED", _reason(error, kind), type(error).__name__
        if check.usual and isinstance(error, AssertionError):
            status = "differs"
    if check.name in announced:
        if status == "ok":
            status, reason = "FAILED", "was expected to fail, and did not: " + announced[check.name]
        else:
            status, reason = "expected", announced[check.name]
    return CheckOutcome(
        component=tried.label,
        kind=kind,
        check=check.name,
        status=status,
        reason=reason,
        error=error_type,
    )


def _reason(error: Exception, kind: str) -> str:
    text = str(error).strip()
    if isinstance(error, AssertionError) and text:
        return text
    called = {COMPONENT_HOOKS[hook] for hook in CALLED_KINDS}
    undeclared = kind in called and "NoneType" in text
    hint = "; a column that the needs of the component do not name is None" if undeclared else ""
    return f"{type(error).__name__}: {text}{hint}"


def as_saved(label: str, state: object) -> dict[str, Any]:
    """Return a component's state as a checkpoint gives it back."""
    try:
        return plain_state(label, state)
    except PluginError as error:
        raise AssertionError(str(error)) from error


def of_type(answer: object, expected: type[AnswerT]) -> AnswerT:
    """Return what a component answered, of the type that its kind promises."""
    assert isinstance(answer, expected), (
        f"it returned a {type(answer).__name__}; expected {expected.__name__}"
    )
    return answer
