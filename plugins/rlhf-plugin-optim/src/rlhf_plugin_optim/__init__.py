"""Registration of the optimizers (AdamW, AdamW with 8-bit state, SGD and Muon) and of learning-rate schedules."""

from typing import Any

from rlhf_core import Component, hookimpl

from .config import Adam8bitConfig, AdamConfig, MuonConfig, SgdConfig
from .schedules import constant, cosine, inverse_sqrt, linear, wsd


@hookimpl
def rlhf_lr_schedules() -> list[Component[Any]]:
    return [
        constant.COMPONENT,
        linear.COMPONENT,
        cosine.COMPONENT,
        wsd.COMPONENT,
        inverse_sqrt.COMPONENT,
    ]


@hookimpl
def rlhf_optimizers() -> list[Component[Any]]:
    """Return the optimizer components; a run imports only the modules of those that it selects."""
    return [
        Component(
            name="adam",
            factory="rlhf_plugin_optim.adam:Adam",
            config=AdamConfig,
            summary="AdamW, fused where torch can; no weight decay on biases and norms",
        ),
        Component(
            name="adam8bit",
            factory="rlhf_plugin_optim.adam8bit:Adam8bit",
            config=Adam8bitConfig,
            summary="AdamW with 8-bit state, from bitsandbytes",
            extra="bnb",
        ),
        Component(
            name="muon",
            factory="rlhf_plugin_optim.muon:Muon",
            config=MuonConfig,
            summary="orthogonalized momentum for hidden matrices, AdamW for everything else",
        ),
        Component(
            name="sgd",
            factory="rlhf_plugin_optim.sgd:Sgd",
            config=SgdConfig,
            summary="gradient descent, with momentum if wanted; keeps no state without",
        ),
    ]
