"""Noise on embeddings beside ways to share one model's work: what would give ranks different noise is refused."""

from __future__ import annotations

from rlhf_core import ConfigError
from rlhf_core.contracts import RoleSpec

from ..config import DeepSpeedConfig


def refuse_cut_noise(spec: RoleSpec, config: DeepSpeedConfig) -> None:
    """Refuse noise on embeddings where ranks compute the same rows together, or layers are one graph.

    Raises:
        ConfigError: names the option to change.
    """
    if not spec.embedding_noise:
        return
    if config.tensor_parallel > 1:
        raise ConfigError(
            f"--backend.deepspeed.tensor_parallel {config.tensor_parallel}: expected 1 with noise on embeddings, which "
            "each rank draws for itself. Set it to 1, or leave the noise out (--train.neftune_alpha 0).",
            code="config/conflict",
        )
    if config.deep_compile:
        raise ConfigError(
            "--backend.deepspeed.deep_compile true: expected false with noise on embeddings, which is no part of the "
            "compiled graph. Leave one of them out (--train.neftune_alpha 0).",
            code="config/conflict",
        )
