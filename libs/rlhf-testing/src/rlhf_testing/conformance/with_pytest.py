"""Checks as a pytest parametrization."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from .registry import applying, refuse_unknown
from .subject import Source, subject

if TYPE_CHECKING:
    import pytest


def parametrize_checks(
    hook: str,
    sources: Mapping[str, Source],
    *,
    expected_failures: Mapping[str, str] = MappingProxyType({}),
) -> pytest.MarkDecorator:
    """Return a decorator for ``def test_contract(check, subject): check(subject)``.

    One test per component and check that applies.

    Args:
        hook: hook of the components, such as ``rlhf_policy_losses``.
        sources: label -> component, as registered, described, a ``subject`` with options, or a callable.
        expected_failures: check name -> why these components do not keep that promise. Such a test must fail with an
            AssertionError: one that passes is an error, so the list cannot grow stale.

    Raises:
        ConfigError: ``expected_failures`` names a check that does not apply.
    """
    import pytest

    parameters = []
    for label, source in sources.items():
        tried = subject(source, label)
        refuse_unknown(hook, tried, expected_failures)
        for check in applying(hook, tried):
            marks = []
            if check.name in expected_failures:
                reason = expected_failures[check.name]
                marks = [pytest.mark.xfail(reason=reason, strict=True, raises=AssertionError)]
            parameters.append(pytest.param(check, tried, id=f"{label}-{check.name}", marks=marks))
    return pytest.mark.parametrize(("check", "subject"), parameters)
