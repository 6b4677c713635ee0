"""The first request of a connection, at its two ends: which protocol, which environment, with which options."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from rlhf_core.component import ComponentRef, Registered
from rlhf_core.contracts.environment import Environment, manifest_of
from rlhf_core.errors import PluginError

from .messages import PROTOCOL, Plain

HOOK = "rlhf_environments"


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeEnvironment:
    """An environment that this process serves."""

    make: Callable[[], Environment]
    greeting: Plain
    """The answer to ``hello``."""


def hello_fields(environment: ComponentRef, *, path: list[str] | None, token: str | None) -> Plain:
    """Return the fields of ``hello``.

    Args:
        path: ``sys.path`` of the run, for a worker of the run's own interpreter.
        token: what a server wants to see first.
    """
    return {
        "protocol": PROTOCOL,
        "environment": environment.name,
        "options": dict(environment.options),
        "path": path,
        "token": token,
    }


def require_protocol(message: Mapping[str, Any]) -> None:
    """Check the version in a greeting.

    Raises:
        PluginError: the other side speaks another version of the protocol.
    """
    if message.get("protocol") != PROTOCOL:
        raise PluginError(
            f"expected version {PROTOCOL} of the environments' protocol, got {message.get('protocol')!r:.60}. Install "
            "one version of rlhf-guard for the run and for the environment",
            code="environment/other-protocol",
        )


def open_environment(
    hello: Mapping[str, Any], registered: Registered[Environment]
) -> MadeEnvironment:
    """Return the environment that ``hello`` asks for, its code imported.

    Raises:
        RLHFError: the other side speaks another version of the protocol, or the code cannot be imported.
        pydantic.ValidationError: an option is unknown or out of range.
    """
    require_protocol(hello)
    options = registered.validate(hello.get("options", {}))
    factory = registered.load()
    manifest = manifest_of(factory)
    return MadeEnvironment(
        make=lambda: factory(options),
        greeting={
            "protocol": PROTOCOL,
            "environment": registered.name,
            "origin": registered.origin,
            "manifest": asdict(manifest) if manifest is not None else None,
        },
    )
