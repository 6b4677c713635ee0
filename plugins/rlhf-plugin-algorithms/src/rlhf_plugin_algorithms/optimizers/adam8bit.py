"""AdamW with 8-bit moments from bitsandbytes: 2 bytes of state per weight instead of 8."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Sequence

from pydantic import Field

from rlhf_core import Component, ConfigError, MissingDependency
from rlhf_core.capabilities import UNSHARED_STATE, WHOLE_PARAMETERS
from rlhf_core.contracts import ParameterGroup
from rlhf_core.lazy import torch

from .adam import Adam, AdamConfig
from .groups import torch_groups


class Adam8bitConfig(AdamConfig):
    """Options of AdamW with 8-bit state."""

    min_8bit_size: int = Field(
        4096, ge=0, description="parameters with fewer numbers keep their state in float32"
    )
    paged: bool = Field(
        False,
        description="let the driver move optimizer state to host memory if GPU memory runs out",
    )


class Adam8bit(Adam):
    """The ``adam8bit`` optimizer component.

    Source: Dettmers et al. 2022 (8-bit Optimizers via Block-wise Quantization), arXiv:2110.02861, as
    ``bitsandbytes.optim.AdamW8bit`` has it.

    Raises:
        MissingDependency: bitsandbytes is not installed.
    """

    config: Adam8bitConfig

    def __init__(self, config: Adam8bitConfig) -> None:
        if importlib.util.find_spec("bitsandbytes") is None:
            raise MissingDependency(
                "algorithms:adam8bit needs bitsandbytes.\n  pip install 'rlhf-plugin-algorithms[bnb]'"
            )
        super().__init__(config)

    def create(self, groups: Sequence[ParameterGroup]) -> torch.optim.Optimizer:
        """Return the optimizer of the parameter groups; options of a group override those of the component.

        Raises:
            ConfigError: ``paged`` is on, but a parameter is not on a GPU.
        """
        optim = importlib.import_module(
            "bitsandbytes.optim"
        )  # Only a part of the package has types.
        if self.config.paged:
            _require_gpu(groups)
        optimizer: torch.optim.Optimizer = optim.AdamW8bit(
            torch_groups(groups),
            lr=self.config.lr,
            betas=self.config.betas,
            eps=self.config.eps,
            weight_decay=self.config.weight_decay,
            min_8bit_size=self.config.min_8bit_size,
            is_paged=self.config.paged,
        )
        return optimizer


def _require_gpu(groups: Sequence[ParameterGroup]) -> None:
    """Refuse parameters outside of a GPU: only the CUDA driver can page memory between GPU and host."""
    for group in groups:
        for name, parameter in group.named_parameters:
            if parameter.device.type != "cuda":
                raise ConfigError(
                    f"adam8bit.paged is on, but {name} is on {parameter.device}; expected a CUDA GPU. Leave paged off, "
                    "or train on a GPU",
                    code="gpu/not-visible",
                )


COMPONENT = Component(
    name="adam8bit",
    factory=Adam8bit,
    config=Adam8bitConfig,
    summary="AdamW with 8-bit state, from bitsandbytes",
    provides=frozenset({UNSHARED_STATE, WHOLE_PARAMETERS}),
    extra="bnb",
)
