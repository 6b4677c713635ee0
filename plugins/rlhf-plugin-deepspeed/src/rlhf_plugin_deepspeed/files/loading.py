"""Loading of a role's model into host memory, and its move to the device for stages 0 to 2; noise that ranks would draw
differently is refused."""

from __future__ import annotations

import torch

from rlhf_core import ConfigError
from rlhf_core.contracts import RoleSpec
from rlhf_core.plugins import Plugins
from rlhf_torch.models.device import choose_compute_dtype
from rlhf_torch.models.role_model import RoleModel, RoleOptions, build_role_model

from ..config import DeepSpeedConfig


def load_role(
    spec: RoleSpec, config: DeepSpeedConfig, plugins: Plugins, device: torch.device
) -> RoleModel:
    """Return the model of a role, on ``device`` at stages 0 to 2 and on the host at stage 3.

    Stage 3 partitions the model on its way to the device, which may lack memory for the whole model.

    Raises:
        ConfigError: the model cannot be loaded, or the options do not fit the model or the machine.
        PluginError: the backend cannot use the architecture or the adapter.
    """
    refuse_cut_noise(spec, config)
    options = RoleOptions(
        device="cpu",
        compute_dtype="auto",
        gradient_checkpointing=config.gradient_checkpointing,
        compile=config.compile,
        deterministic=config.deterministic,
    )
    role = build_role_model(spec, options, plugins)
    role.lm.compute_dtype = choose_compute_dtype(
        config.compute_dtype, role.lm.dtype, sum(p.numel() for p in role.lm.parameters()), device
    )
    return role if config.zero_stage == 3 else role.to(device)


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
            code="deepspeed/noise-of-shared-matrices",
        )
    if config.deep_compile:
        raise ConfigError(
            "--backend.deepspeed.deep_compile true: expected false with noise on embeddings, which is no part of the "
            "compiled graph. Leave one of them out (--train.neftune_alpha 0).",
            code="deepspeed/compiled-noise",
        )
