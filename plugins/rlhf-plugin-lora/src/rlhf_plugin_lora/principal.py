"""PiSSA: the factors begin as the principal singular values and vectors of a weight, and the rest of it is fixed.

With W = U S V', the factors begin as A0 = sqrt(S_r / s) V_r' and B0 = U_r sqrt(S_r / s), where s is the scaling. Thus
s B0 A0 is the part of W with the r largest singular values, and the weight becomes (W - s B0 A0) + s B A. Source: Meng
et al. 2024, arXiv:2404.02948.

The paper, and PEFT, write the residual W - s B0 A0 over the base. Here the base stays as it is, since other roles may
compute with it: a second, fixed pair of factors beside the trained one is (A0, -B0). To the base, an engine and an
export, the adapter is thus a plain one of twice the rank, which is what PEFT converts such an adapter to.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy

import torch
from peft import LoraConfig
from peft.tuners.lora import LoraLayer
from torch import Tensor, nn

from rlhf_core import ConfigError

from .weights import BEGINNING, NAME


@torch.no_grad()
def begin_principal(layers: Mapping[str, LoraLayer]) -> None:
    """Set the factors of each layer, and their fixed counterparts, which are then computed with too.

    Raises:
        ConfigError: a layer is an embedding, or its weight has fewer singular values than the rank.
    """
    for name, layer in layers.items():
        base = layer.get_base_layer()
        if isinstance(base, nn.Embedding):
            raise ConfigError(
                f"init pissa of the adapter: {name} is an embedding; expected linear layers. Leave it out "
                "with exclude.",
                code="adapter/unsuitable-init",
            )
        weight = base.weight.T if layer.fan_in_fan_out else base.weight
        rank = layer.r[NAME]
        if rank > min(weight.shape):
            raise ConfigError(
                f"init pissa of the adapter: {name} has {min(weight.shape)} singular values, and the rank is {rank}. "
                "Lower rank, or that of this module with rank_pattern.",
                code="adapter/rank-too-large",
            )
        if weight.is_meta:  # shapes alone are counted, and PEFT leaves a second pair on the CPU
            layer.lora_A.to(weight.device)
            layer.lora_B.to(weight.device)
        else:
            a, b = _principal(weight, rank, float(layer.scaling[NAME]))
            for adapter, sign in ((NAME, 1), (BEGINNING, -1)):
                layer.lora_A[adapter].weight.copy_(a)
                layer.lora_B[adapter].weight.copy_(sign * b)
        layer.set_adapter([NAME, BEGINNING])
        for factor in (layer.lora_A, layer.lora_B):
            factor[BEGINNING].requires_grad_(False)


def _principal(weight: Tensor, rank: int, scaling: float) -> tuple[Tensor, Tensor]:
    """Return A0 (r, in) and B0 (out, r) of a weight (out, in), in float32."""
    left, values, right = torch.linalg.svd(weight.float(), full_matrices=False)
    roots = (values[:rank] / scaling).sqrt()
    return roots[:, None] * right[:rank], left[:, :rank] * roots


def doubled(config: LoraConfig) -> LoraConfig:
    """Return the config of the plain adapter whose factors are both pairs: twice the rank with the same scaling."""
    made = deepcopy(config)
    grown = 2**0.5 if config.use_rslora else 2
    made.r *= 2
    made.lora_alpha *= grown
    made.rank_pattern = {key: 2 * rank for key, rank in config.rank_pattern.items()}
    # A module with a rank of its own has the usual alpha, which has grown by as much.
    made.alpha_pattern = {key: grown * alpha for key, alpha in config.alpha_pattern.items()}
    return made
