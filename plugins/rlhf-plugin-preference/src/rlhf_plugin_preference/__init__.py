"""Losses that learn from preferences between given answers: DPO and its relatives. One file an algorithm."""

from typing import Any

from rlhf_core import Component, hookimpl

from . import (
    aot,
    aot_unpaired,
    apo_down,
    apo_zero,
    bco,
    cdpo,
    dpo,
    hinge,
    ipo,
    kto,
    orpo,
    robust,
    simpo,
)


@hookimpl
def rlhf_preference_losses() -> list[Component[Any]]:
    return [
        dpo.COMPONENT,
        cdpo.COMPONENT,
        robust.COMPONENT,
        ipo.COMPONENT,
        hinge.COMPONENT,
        apo_zero.COMPONENT,
        apo_down.COMPONENT,
        bco.COMPONENT,
        aot.COMPONENT,
        aot_unpaired.COMPONENT,
        kto.COMPONENT,
        orpo.COMPONENT,
        simpo.COMPONENT,
    ]
