"""Mixtures of experts whose weights stay as they were loaded.

Most of vLLM's kernels for experts want them packed, swapped or in blocks. Those written in Triton take them as they are
in a checkpoint, stacked: gate and up (E, 2F, D), down (E, D, F). On a GPU one of these is asked for (``arguments``) and
only looked at here; on a CPU there is none, so plain products take its place. Either way vLLM's own ``load_weights``
does the stacking, or takes the stacks that Transformers has.

Letters: N tokens, K experts of a token, E experts that this worker has, D hidden size, F size of an expert.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import (
    UnquantizedFusedMoEMethod,
)

PLAIN_KERNELS = ("TRITON", "BATCHED_TRITON")
"""Names in vLLM of the kernels that compute with the parameters themselves."""
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
}
"""Of a gate, by vLLM's names; others are computed by its own kernels only."""


class PlainExperts(UnquantizedFusedMoEMethod):
    """Products with the parameters themselves, after vLLM's router has chosen."""

    def process_weights_after_loading(self, layer: nn.Module) -> None: ...

    def apply(
        self,
        layer: Any,
        x: Tensor,
        topk_weights: Tensor,
        topk_ids: Tensor,
        shared_experts: nn.Module | None,
        shared_experts_input: Tensor | None,
    ) -> Tensor:
        """Return the sum over the worker's own experts; shared ones are computed and added by vLLM's caller."""
        ids = topk_ids.long()
        if layer.expert_map is not None:
            ids = layer.expert_map.long()[ids]
        activation = layer.activation.value
        return weighted_sum(x, layer.w13_weight, layer.w2_weight, topk_weights, ids, activation)


# An operation of its own, because torch.compile cannot look into sizes that depend on what was chosen.
@torch.library.custom_op("rlhf::weighted_sum", mutates_args=())
def weighted_sum(
    x: Tensor,
    gate_up: Tensor,
    down: Tensor,
    weights: Tensor,
    ids: Tensor,
    activation: str,
) -> Tensor:
    """Return y_n = sum_k w_nk down_e (activation(gate_e x_n) * up_e x_n) with e = ids_nk, of shape (N, D).

    Each expert multiplies the tokens that chose it at once; one that none chose is not read.

    Args:
        x: (N, D).
        gate_up: (E, 2F, D), gates first.
        down: (E, D, F).
        weights: (N, K), of the chosen experts.
        ids: (N, K), which they are; -1 for one that another worker has, which adds nothing here.
        activation: name of one of ``ACTIVATIONS``.
    """
    activate = ACTIVATIONS[activation]
    chosen = ids.flatten()  # (N*K,), token-major
    order = chosen.argsort(stable=True)
    counts = (chosen + 1).bincount(minlength=len(down) + 1).tolist()
    # In float32, because K rounded summands of bfloat16 would not give the rounded sum.
    total = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
    for expert, places in enumerate(order.split(counts)[1:]):
        if len(places) == 0:
            continue
        tokens = places // ids.shape[1]
        gate, up = F.linear(x[tokens], gate_up[expert]).chunk(2, dim=-1)  # (n, F) each
        outputs = F.linear(activate(gate) * up, down[expert])  # (n, D)
        total.index_add_(0, tokens, outputs.float() * weights.flatten()[places, None].float())
    return total.to(x.dtype)


@weighted_sum.register_fake
def _(x: Tensor, *_: Any) -> Tensor:
    return torch.empty_like(x)


def keep_plain_experts(layer: Any, *, on_cpu: bool) -> str | None:
    """Have a layer of experts compute with its parameters as they are; return why it cannot, or None.

    Args:
        layer: vLLM's, with the method for experts that are not quantized.
    """
    method = layer.quant_method
    if layer.moe_config.moe_parallel_config.enable_eplb:
        return "balances load by moving experts (enable_eplb)"
    if not on_cpu:
        kernel = method.unquantized_backend
        return None if kernel.name in PLAIN_KERNELS else f"is computed by {kernel.value}"
    if method.is_monolithic:
        return "chooses experts within the kernel, as vLLM for CPUs did before 0.32"
    if layer.activation.value not in ACTIVATIONS or layer.swiglu_limit is not None:
        return f"has the activation {layer.activation.value}, which only vLLM's own kernel computes"
    if layer.moe_config.has_bias or layer.apply_router_weight_on_input:
        return "has biases or weighted inputs, which only vLLM's own kernel computes"
    layer.quant_method = PlainExperts(method.moe)
    return None
