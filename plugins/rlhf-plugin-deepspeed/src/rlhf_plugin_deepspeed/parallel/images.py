"""Options that do not work with images yet: those under which no rank has all tokens of a sequence."""

from __future__ import annotations

from rlhf_core import ConfigError

from ..config import DeepSpeedConfig


def refuse_cut_images(config: DeepSpeedConfig) -> None:
    """Refuse options under which no rank has all tokens of a sequence, or its layers as they are.

    Raises:
        ConfigError: an option is set that does not work with images.
    """
    for name, is_set, off in (
        ("sequence_parallel", config.sequence_parallel > 1, "1"),
        ("tensor_parallel", config.tensor_parallel > 1, "1"),
        ("deep_compile", config.deep_compile, "false"),
    ):
        if is_set:
            raise ConfigError(
                f"--backend.deepspeed.{name} does not work with images yet; set it to {off}, or train on text alone, "
                "without --model.vision",
                code="deepspeed/images",
            )
