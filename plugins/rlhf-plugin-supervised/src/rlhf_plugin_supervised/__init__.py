"""Losses that imitate: supervised fine-tuning as a term of a run, and on-policy distillation from a teacher."""

from typing import Any

from rlhf_core import Component, hookimpl

from .config import DistillConfig, SftConfig


@hookimpl
def rlhf_policy_losses() -> list[Component[Any]]:
    # With the ratio in its estimate (distill, sampled), or right whoever wrote the response.
    provides = frozenset({"aggregation:token-mean", "off_policy"})
    return [
        Component(
            name="distill",
            factory="rlhf_plugin_supervised.components:DistillLoss",
            config=DistillConfig,
            summary="KL to a teacher on the policy's own samples (on-policy distillation)",
            provides=provides,
        ),
        Component(
            name="sft",
            factory="rlhf_plugin_supervised.components:SftLoss",
            config=SftConfig,
            summary="negative log-likelihood of given responses; as a further loss, with --algo.terms.use",
            needs=frozenset({"supervised_data"}),
            provides=provides,
        ),
    ]
