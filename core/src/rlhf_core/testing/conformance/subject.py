"""What is checked, what a check is, and what came of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from ...component import Component, Config, Registered


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A component with its options, and what it declares about itself."""

    label: str
    make: Callable[[], Any]
    """Return a fresh instance: checks share no state."""
    needs: frozenset[str] = frozenset()
    """What it declares, and what its option values do. It is given this and nothing else."""
    provides: frozenset[str] = frozenset()
    conflicts: frozenset[str] = frozenset()
    config: Config = field(default_factory=Config)
    origin: Registered[Any] | None = None
    """None for a bare factory."""

    def with_options(self, **options: Any) -> Subject:
        """Return the same component with other options, for checks that compare two."""
        assert self.origin is not None, f"{self.label} was given as a bare factory, without options"
        return subject(self.origin, **{**self.config.model_dump(), **options})


Source = Subject | Registered[Any] | Component[Any] | Callable[[], Any]
"""What can be checked. A callable makes the component, and declares no needs."""


def subject(source: Source, /, label: str | None = None, **options: Any) -> Subject:
    """Return what the checks are called with.

    Args:
        source: a component as registered or described, or a callable that makes one.
        label: shown in reports; the component's name when None.
        options: of the component; its defaults where they are left out.

    Raises:
        pydantic.ValidationError: an option is unknown, out of range, or required and left out.
    """
    if isinstance(source, Subject):
        return source if label is None else replace(source, label=label)
    if isinstance(source, Component):
        source = Registered(source, "checked")
    if not isinstance(source, Registered):
        return Subject(label=label or str(getattr(source, "__name__", "component")), make=source)
    registered, config = source, source.validate(options)
    return Subject(
        label=label or registered.name,
        make=lambda: registered.build(config),
        needs=registered.component.needs | config.needed_by_options(),
        provides=registered.component.provides,
        conflicts=registered.component.conflicts,
        config=config,
        origin=registered,
    )


def _always(subject: Subject) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Check:
    """One promise of a contract. Calling it raises AssertionError, with the numbers, where it is broken."""

    run: Callable[[Subject], None]
    applies: Callable[[Subject], bool] = _always
    """False where the promise is not one of this component's."""
    usual: bool = False
    """Most components of the kind have the property, but the contract does not ask for it. A test has to announce that
    it does not hold; ``run_checks`` and ``rlhf check`` only say so."""

    @property
    def name(self) -> str:
        return self.run.__name__

    @property
    def promise(self) -> str:
        """The first line of the check's documentation."""
        return (self.run.__doc__ or "").strip().partition("\n")[0]

    def __call__(self, subject: Subject) -> None:
        self.run(subject)


Status = Literal["ok", "FAILED", "expected", "differs"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of one check of one component."""

    component: str
    kind: str
    check: str
    status: Status
    """``expected`` is a failure that was announced; an announced one that does not happen is ``FAILED``. ``differs``: a
    usual property, no promise, does not hold."""
    reason: str = ""
    error: str = ""
    """Type of what was raised: ``AssertionError`` where a promise was seen to be broken, anything else where the
    component could not even do its work."""

    @property
    def failed(self) -> bool:
        return self.status == "FAILED"


def outcome_of(check: Check, tried: Subject, kind: str, announced: Mapping[str, str]) -> Outcome:
    """Run one check. Whatever a stranger's component raises is a failure with that reason."""
    status: Status = "ok"
    reason = error_type = ""
    try:
        check(tried)
    except Exception as error:
        status, reason, error_type = "FAILED", _reason(error), type(error).__name__
        if check.usual and isinstance(error, AssertionError):
            status = "differs"
    if check.name in announced:
        if status == "ok":
            status, reason = "FAILED", "was expected to fail, and did not: " + announced[check.name]
        else:
            status, reason = "expected", announced[check.name]
    return Outcome(
        component=tried.label,
        kind=kind,
        check=check.name,
        status=status,
        reason=reason,
        error=error_type,
    )


def _reason(error: Exception) -> str:
    text = str(error).strip()
    return text if isinstance(error, AssertionError) and text else f"{type(error).__name__}: {text}"
