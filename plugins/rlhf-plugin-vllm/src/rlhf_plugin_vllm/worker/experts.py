"""Layers of experts whose weights keep the layout of a checkpoint, so that new weights can be copied into them.

Most of vLLM's kernels for experts need weights that are packed, swapped or in blocks. vLLM's Triton kernels take the
weights of a checkpoint in stacks: gate and up (E, 2F, D), down (E, D, F). On a GPU, ``arguments`` asks vLLM for a
Triton kernel, and this module checks that vLLM has chosen one. vLLM has no such kernel for a CPU, where this module
computes plain products instead. On both, vLLM's own ``load_weights`` stacks the weights, or takes Transformers' stacks.

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
"""vLLM's names of the kernels that compute with the parameters themselves."""
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
}
"""Activations of a gate, by vLLM's names. Only vLLM's own kernels compute further ones."""


class PlainExperts(UnquantizedFusedMoEMethod):
    """vLLM's method for experts, replaced by products with the parameters. vLLM's router chooses the experts."""

    def process_weights_after_loading(self, layer: nn.Module) -> None:
        """Leave the parameters as they are."""

    # vLLM's class is a Module whose `apply` is this method and not torch's.
    def apply(  # type: ignore[override]
        self,
        layer: Any,
        x: Tensor,
        topk_weights: Tensor,
        topk_ids: Tensor,
        shared_experts: nn.Module | None,
        shared_experts_input: Tensor | None,
    ) -> Tensor:
        """Return (N, D) weighted sums over this worker's experts. vLLM's caller computes and adds shared experts."""
        ids = topk_ids.long()
        if layer.expert_map is not None:
            ids = layer.expert_map.long()[ids]
        activation = layer.activation.value
        total: Tensor = weighted_sum(
            x, layer.w13_weight, layer.w2_weight, topk_weights, ids, activation
        )
        return total


# A custom operation, because torch.compile cannot trace sizes that depend on the chosen experts.
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

    Each expert multiplies all of its tokens at once. The weights of an expert without tokens are not read.

    Args:
        x: (N, D) hidden states.
        gate_up: (E, 2F, D) weights of the gates, then of the up projections.
        down: (E, D, F) weights of the down projections.
        weights: (N, K) weights w of the chosen experts in the sum.
        ids: (N, K) indices of the chosen experts; -1 for an expert of another worker, which adds nothing here.
        activation: name of one of ``ACTIVATIONS``.
    """
    activate = ACTIVATIONS[activation]
    chosen = ids.flatten()  # (N*K,), token-major
    order = chosen.argsort(stable=True)
    counts = (chosen + 1).bincount(minlength=len(down) + 1).tolist()
    # In float32: with bfloat16 each of the K summands would be rounded, not only the sum.
    total = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
    for expert, places in enumerate(torch.split(order, counts)[1:]):
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
    """Make a layer of experts compute with its parameters in the layout of a checkpoint.

    Returns the reason why the layer cannot do this, as the end of a sentence about the layer; None if it can.

    Args:
        layer: vLLM's layer of experts that are not quantized.
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
