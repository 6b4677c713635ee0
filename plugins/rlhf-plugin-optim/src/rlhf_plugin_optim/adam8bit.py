"""AdamW with 8-bit moments from bitsandbytes: 2 bytes of state per weight instead of 8."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import nn

from rlhf_core import ConfigError, MissingDependency
from rlhf_core.contracts import ParameterGroup

from .config import Adam8bitConfig
from .groups import by_decay, torch_groups, trainable_parameters

_NEEDS_GPU = "runs on a CUDA GPU"


class Adam8bit:
    """The ``adam8bit`` optimizer component.

    Source: Dettmers et al. 2022 (8-bit Optimizers via Block-wise Quantization), arXiv:2110.02861, as
    ``bitsandbytes.optim.AdamW8bit`` has it.

    Raises:
        ConfigError: torch sees no CUDA GPU.
    """

    def __init__(self, config: Adam8bitConfig) -> None:
        if not torch.cuda.is_available():
            raise ConfigError(f"adam8bit {_NEEDS_GPU}, and torch sees none; choose --optim adam")
        self.config = config

    def parameter_groups(
        self, named_parameters: Iterable[tuple[str, nn.Parameter]]
    ) -> list[ParameterGroup]:
        """Split the trainable parameters into ``decay``, two or more axes, and ``no_decay``.

        Raises:
            ConfigError: no parameter is trainable.
        """
        return by_decay(
            trainable_parameters(named_parameters), weight_decay=self.config.weight_decay
        )

    def create(self, groups: Sequence[ParameterGroup]) -> torch.optim.Optimizer:
        """Return the optimizer over the groups; each may override ``lr`` and the rest in its options.

        Raises:
            ConfigError: a parameter is not on a GPU.
            MissingDependency: bitsandbytes is not installed.
        """
        _require_gpu(groups)
        try:
            from bitsandbytes.optim import AdamW8bit  # type: ignore[import-not-found]
        except ImportError as error:
            raise MissingDependency(
                f"optim:adam8bit needs bitsandbytes ({error}).\n  pip install 'rlhf-plugin-optim[bnb]'"
            ) from error
        optimizer: torch.optim.Optimizer = AdamW8bit(
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
    for group in groups:
        for name, parameter in group.named_parameters:
            if parameter.device.type != "cuda":
                raise ConfigError(
                    f"adam8bit {_NEEDS_GPU}, but {name} is on {parameter.device}; choose --optim adam, or a device "
                    "with a GPU"
                )
