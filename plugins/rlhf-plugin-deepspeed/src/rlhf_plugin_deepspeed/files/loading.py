"""Loading of a role's model into host memory, and its move to the device for stages 0 to 2."""

from __future__ import annotations

import torch

from rlhf_core.contracts import RoleSpec
from rlhf_core.plugins import Plugins
from rlhf_torch.models.device import choose_compute_dtype
from rlhf_torch.models.role_model import RoleModel, RoleOptions, build_role_model

from ..config import DeepSpeedConfig
from ..parallel.embedding_noise import refuse_cut_noise


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
    )
    role = build_role_model(spec, options, plugins)
    role.lm.compute_dtype = choose_compute_dtype(
        config.compute_dtype, role.lm.dtype, sum(p.numel() for p in role.lm.parameters()), device
    )
    return role if config.zero_stage == 3 else role.to(device)
