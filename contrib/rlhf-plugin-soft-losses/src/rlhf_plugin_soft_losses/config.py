"""Options of ``sapo`` and ``gpg``. Where defaults come from is in docs/algorithms."""

from __future__ import annotations

from pydantic import Field

from rlhf_core import Config


class SapoConfig(Config):
    tau_pos: float = Field(
        1.0,
        gt=0.0,
        le=100.0,
        description="steepness of the gate where A > 0; larger lets the gradient fade closer to ratio 1",
    )
    tau_neg: float = Field(
        1.05,
        gt=0.0,
        le=100.0,
        description="steepness of the gate where A <= 0; above tau_pos, since these updates are less stable",
    )


class GpgConfig(Config):
    pass
