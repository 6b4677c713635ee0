"""Importance-sampling corrections between the sampler's policy and the trainer's."""

from typing import Any

from rlhf_core import Component, hookimpl

from .config import (
    CorrectionConfig,
    FlashMaskConfig,
    IcepopConfig,
    ImportanceConfig,
    MisConfig,
    SeqMaskTisConfig,
    TisConfig,
)


@hookimpl
def rlhf_is_corrections() -> list[Component[Any]]:
    return [
        _correction(
            "importance", ImportanceConfig, "weights or masks by ratio or divergence, at any level"
        ),
        _correction("tis", TisConfig, "each token's weight, truncated (TIS)"),
        _correction(
            "icepop", IcepopConfig, "tokens whose ratio leaves a band are dropped (IcePop)"
        ),
        _correction(
            "seq_mask_tis",
            SeqMaskTisConfig,
            "sequences whose mean ratio leaves a band are dropped; the others carry token weights",
        ),
        _correction(
            "mis",
            MisConfig,
            "sequences with a large ratio are dropped; the others carry it (Seq-MIS)",
        ),
        _correction(
            "flash_mask",
            FlashMaskConfig,
            "sequences with a large mean binary KL are dropped (FlashREINFORCE)",
        ),
    ]


def _correction(name: str, config: type[CorrectionConfig], summary: str) -> Component[Any]:
    return Component(
        name=name,
        factory="rlhf_plugin_offpolicy.corrections.components:ImportanceCorrection",
        config=config,
        summary=summary,
        needs=frozenset({"rollout_logprobs"}),
        # The sampler's log-probs would be of another distribution, or the very numbers that they are compared with.
        conflicts=frozenset({"renormalized_sampling", "rollout_as_old"}),
    )
