"""Policy losses without hard clipping: SAPO and GPG. One file an algorithm."""

from typing import Any

from rlhf_core import Component, hookimpl

from . import gpg, sapo


@hookimpl
def rlhf_policy_losses() -> list[Component[Any]]:
    return [sapo.COMPONENT, gpg.COMPONENT]
