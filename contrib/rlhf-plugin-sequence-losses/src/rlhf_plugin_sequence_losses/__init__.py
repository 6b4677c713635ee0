"""Policy losses over whole sequences: GMPO, LUSPO and VESPO. One file an algorithm."""

from typing import Any

from rlhf_core import Component, hookimpl

from . import gmpo, luspo, vespo


@hookimpl
def rlhf_policy_losses() -> list[Component[Any]]:
    return [gmpo.COMPONENT, luspo.COMPONENT, vespo.COMPONENT]
