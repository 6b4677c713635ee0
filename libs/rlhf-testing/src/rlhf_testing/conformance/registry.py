"""All checks, by the hook of the components that they check, and their run without pytest."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from types import MappingProxyType
from typing import Any

from rlhf_core.component import Registered
from rlhf_core.errors import ConfigError
from rlhf_core.hookspecs import COMPONENT_HOOKS

from .subject import Check, CheckOutcome, Source, Subject, outcome_of, required_options, subject

_MODULES: Mapping[str, str] = MappingProxyType(
    {
        "rlhf_data_sources": "data.sources",
        "rlhf_prompt_samplers": "data.samplers",
        "rlhf_advantage_estimators": "estimators",
        "rlhf_policy_losses": "losses",
        "rlhf_preference_losses": "preference_losses",
        "rlhf_is_corrections": "corrections",
        "rlhf_kl_estimators": "functions.kl",
        "rlhf_eval_metrics": "functions.eval_metrics",
        "rlhf_reward_shapers": "shapers",
        "rlhf_sample_filters": "filters",
        "rlhf_optimizers": "optimizers",
        "rlhf_lr_schedules": "functions.schedules",
        "rlhf_model_adapters": "adapters",
        "rlhf_rewards": "rewards",
        "rlhf_rollout_executors": "executors",
        "rlhf_vision_models": "placing.vision",
        "rlhf_engines": "engines",
        "rlhf_train_backends": "backends",
        "rlhf_runtimes": "placing.runtimes",
        "rlhf_observers": "watching.observers",
        "rlhf_loggers": "watching.loggers",
        "rlhf_environments": "environments",
        "rlhf_presets": "presets",
        "rlhf_commands": "commands",
    }
)

CHECKED_HOOKS = tuple(_MODULES)
"""Hooks of the kinds of components that have checks."""


def checks_of(hook: str) -> tuple[Check, ...]:
    """Return the checks for components of this hook; none for kinds that have no checks.

    Raises:
        ConfigError: there is no such hook.
    """
    if hook not in COMPONENT_HOOKS:
        raise ConfigError(
            f"no hook {hook!r}; expected one of {', '.join(COMPONENT_HOOKS)}",
            code="plugin/unknown-hook",
        )
    if hook not in _MODULES:
        return ()
    # Imported when asked for: most need torch, some Transformers.
    checks: tuple[Check, ...] = import_module(f".kinds.{_MODULES[hook]}", __package__).CHECKS
    return checks


def applying(hook: str, tried: Subject) -> list[Check]:
    """Return the checks whose promise is one of this component's."""
    return [check for check in checks_of(hook) if check.applies(tried)]


def run_checks(
    hook: str,
    source: Source,
    *,
    expected_failures: Mapping[str, str] = MappingProxyType({}),
    **options: Any,
) -> list[CheckOutcome]:
    """Run all checks that apply to a component and return their outcomes; pytest is not needed.

    Args:
        source: the component as registered or described, or a callable that makes the component.
        expected_failures: by the check's name, the reason why the component does not keep that promise.
        options: options of the component.

    Raises:
        ConfigError: ``expected_failures`` names a check that does not apply.
    """
    tried = subject(source, **options)
    checks = applying(hook, tried)
    refuse_unknown(hook, tried, expected_failures)
    kind = COMPONENT_HOOKS[hook]
    return [outcome_of(check, tried, kind, expected_failures) for check in checks]


def refuse_unknown(hook: str, tried: Subject, expected_failures: Mapping[str, str]) -> None:
    """Raise ConfigError for an announced failure of a check that does not apply to the component."""
    names = [check.name for check in applying(hook, tried)]
    for name in expected_failures:
        if name not in names:
            raise ConfigError(
                f"{tried.label}: expected_failures names {name!r}; the checks that apply are {', '.join(names)}",
                code="config/unknown-name",
            )


def has_required_options(registered: Registered[Any]) -> bool:
    """Return whether the component has required options, so that only its author can check it."""
    return bool(required_options(registered))
