"""The decision whether engine and roles take the accelerators' memory one after the other: ``runtime.sleep``."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace

from rlhf_config.resolved import Resolved
from rlhf_core.capabilities import PLANS_MEMORY
from rlhf_core.contracts.backend import Leaving
from rlhf_core.contracts.layout import ENGINE
from rlhf_core.contracts.runtime import MemoryPlanner, PlansPlacement, RuntimeSpec, SleepAdvice
from rlhf_core.errors import ConfigError, RLHFError
from rlhf_core.plugins import Plugins

log = logging.getLogger(__name__)


def roles_beside_the_engine(resolved: Resolved, roles: Sequence[str]) -> tuple[str, ...]:
    """Return those of ``roles`` that share accelerators with an engine, as far as the options of the runtime say it.

    Raises:
        ConfigError: the options contradict each other.
    """
    options = resolved.one("runtime.name").options
    if not isinstance(options, PlansPlacement):
        return tuple(roles)
    beside = options.layout(roles, has_gpus=True).of(ENGINE).names
    return tuple(name for name in roles if name in beside)


LEAVING: Mapping[str, Leaving] = {"engine": "nothing", "state": "state", "always": "all"}
"""Values of ``runtime.sleep`` with which the engine sleeps, and what roles move out while it generates."""


def asleep_while_it_learns(resolved: Resolved, spec: RuntimeSpec, leaving: Leaving) -> RuntimeSpec:
    """Return the specification of the run in which the engine sleeps while roles compute.

    Args:
        leaving: what the roles move out while the engine generates.

    Raises:
        ConfigError: the engine shares its accelerators with no role, so that nobody would get what it gives back.
    """
    moving = roles_beside_the_engine(resolved, list(spec.roles))
    if not moving:
        raise ConfigError(
            f"runtime.sleep is {resolved.run.runtime.sleep}, but no role shares accelerators with an engine: its "
            "memory would be given back to nobody. Leave --runtime.sleep out, or let them share: leave "
            "--runtime.ray.colocate out."
        )
    assert spec.engine_spec is not None
    roles = {
        name: replace(role, leaving=leaving) if name in moving else role
        for name, role in spec.roles.items()
    }
    return replace(
        spec,
        roles=roles,
        moving_roles=moving,
        leaving=leaving,
        engine_spec=replace(spec.engine_spec, sleeps=True),
    )


def with_sleep(resolved: Resolved, spec: RuntimeSpec, plugins: Plugins) -> RuntimeSpec:
    """Return the specification with the decision of ``runtime.sleep``; ``auto`` asks the installed memory planner.

    Raises:
        ConfigError: see ``asleep_while_it_learns``.
    """
    choice = resolved.run.runtime.sleep
    if choice in LEAVING:
        return asleep_while_it_learns(resolved, spec, LEAVING[choice])
    if choice == "never" or resolved.run.rollout.max_staleness:
        return spec
    if not roles_beside_the_engine(resolved, list(spec.roles)):
        return spec
    advice = _advice(spec, plugins)
    if advice is None:
        return spec
    log.info("runtime.sleep auto: %s", advice.reason)
    return asleep_while_it_learns(resolved, spec, advice.leaving) if advice.sleeps else spec


def _advice(spec: RuntimeSpec, plugins: Plugins) -> SleepAdvice | None:
    """Return the advice of the first installed planner that has one."""
    for entry in plugins.registries["rlhf_commands"]:
        if PLANS_MEMORY not in entry.component.provides:
            continue
        command = entry.load()
        if not isinstance(command, MemoryPlanner):
            continue
        try:
            advice = command.sleep_advice(spec.config, plugins)
        except RLHFError as error:
            log.warning(
                "runtime.sleep auto: the memory of this run cannot be predicted, so nothing sleeps: %s",
                error,
            )
            return None
        if advice is not None:
            return advice
    return None
