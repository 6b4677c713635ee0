"""DeepSpeed's JSON configuration, computed from the backend's options and a role."""

from __future__ import annotations

import copy
from typing import Any

from rlhf_core.contracts import RoleSpec

from ..config import DeepSpeedConfig


def engine_config(
    config: DeepSpeedConfig, spec: RoleSpec, world_size: int, *, deep_compile: bool = False
) -> dict[str, Any]:
    """Return the configuration for ``deepspeed.initialize``.

    Batch sizes are placeholders of the right proportion: the backend cuts micro-batches itself, tells the engine which
    micro-batch is the last, and turns the engine's scaling of losses off. A trained bfloat16 role keeps float32 weights
    beside the bfloat16 weights and sums its gradients in float32, at every stage.
    """
    offload: dict[str, Any] = {}
    if config.offload_optimizer:
        offload["offload_optimizer"] = {"device": "cpu", "pin_memory": config.pin_memory}
    if config.offload_param:
        offload["offload_param"] = {"device": "cpu", "pin_memory": config.pin_memory}
    ours: dict[str, Any] = {
        "train_batch_size": world_size,
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "gradient_clipping": spec.max_grad_norm or 0.0,
        "communication_data_type": "fp32",
        "data_types": {"grad_accum_dtype": "fp32"},
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "zero_optimization": {
            "stage": config.zero_stage,
            "reduce_bucket_size": config.reduce_bucket_size,
            "contiguous_gradients": config.contiguous_gradients,
            "overlap_comm": config.overlap_comm,
            **offload,
        },
    }
    if config.tensor_parallel > 1:
        ours["tensor_parallel"] = {"autotp_size": config.tensor_parallel}
    if deep_compile:
        ours["compile"] = {"deepcompile": True}
    if spec.dtype == "bfloat16":
        # Without the check DeepSpeed would apply gradients that are not finite.
        ours["bf16"] = {"enabled": True, "check_grad_overflow": True}
    return _merged(copy.deepcopy(config.args), ours)


def _merged(theirs: dict[str, Any], ours: dict[str, Any]) -> dict[str, Any]:
    """Return both tables merged; ``config.py`` has refused keys of ``theirs`` that ``ours`` sets."""
    for key, value in ours.items():
        if isinstance(value, dict) and isinstance(theirs.get(key), dict):
            theirs[key] = _merged(theirs[key], value)
        else:
            theirs[key] = value
    return theirs
