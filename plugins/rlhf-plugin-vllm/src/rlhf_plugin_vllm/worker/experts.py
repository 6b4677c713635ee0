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
OPEN_AI_LIMIT, OPEN_AI_SLOPE = 7.0, 1.702
"""Numbers of GPT-OSS's gate, which are those of vLLM's kernels."""


def gated(activate: Callable[[Tensor], Tensor], gate_up: Tensor) -> Tensor:
    """Return (n, F) activate(gate) * up, of (n, 2F) gates before ups."""
    gate, up = gate_up.chunk(2, dim=-1)
    return activate(gate) * up


def gated_as_gpt_oss(gate_up: Tensor) -> Tensor:
    """Return (n, F) (up + 1) * gate * sigmoid(1.702 gate), of (n, 2F) gates and ups in turn, both at most 7, and ups at
    least -7."""
    gate = gate_up[..., ::2].clamp(max=OPEN_AI_LIMIT)
    up = gate_up[..., 1::2].clamp(-OPEN_AI_LIMIT, OPEN_AI_LIMIT)
    return (up + 1) * gate * torch.sigmoid(OPEN_AI_SLOPE * gate)


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": partial(gated, F.silu),
    "gelu": partial(gated, F.gelu),
    "gelu_tanh": partial(gated, partial(F.gelu, approximate="tanh")),
    "swigluoai": gated_as_gpt_oss,
}
"""Functions of the product with gate and up, by vLLM's names. Only vLLM's own kernels compute further ones."""


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
        biases = (layer.w13_bias, layer.w2_bias) if self.moe.has_bias else (None, None)
        total: Tensor = weighted_sum(
            x, layer.w13_weight, layer.w2_weight, topk_weights, ids, activation, *biases
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
    gate_up_bias: Tensor | None = None,
    down_bias: Tensor | None = None,
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
        gate_up_bias: (E, 2F) what is added before the activation.
        down_bias: (E, D) what is added to an expert's output.
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
        added = [None if bias is None else bias[expert] for bias in (gate_up_bias, down_bias)]
        hidden = activate(F.linear(x[tokens], gate_up[expert], added[0]))  # (n, F)
        outputs = F.linear(hidden, down[expert], added[1])  # (n, D)
        total.index_add_(0, tokens, outputs.float() * weights.flatten()[places, None].float())
    return total.to(x.dtype)


@weighted_sum.register_fake
def _(x: Tensor, *_: Any, **__: Any) -> Tensor:
    return torch.empty_like(x)


def keep_plain_experts(layer: Any, *, on_cpu: bool) -> str | None:
    """Make a layer of experts compute with its parameters in the layout of a checkpoint.

    Returns the reason why the layer cannot do this, as the end of a sentence about the layer; None if it can.

    Args:
        layer: vLLM's layer of experts that are not quantized.
    """
    method = layer.quant_method
    parallel = layer.moe_config.moe_parallel_config
    if parallel.enable_eplb:
        return "balances load by moving experts (enable_eplb)"
    if layer.moe_config.has_bias and parallel.tp_size > 1:
        # vLLM's loader writes zeros over the biases that come to the others, and an update repeats copies alone.
        return "has biases, of which vLLM gives all but one of several shards zeros"
    if not on_cpu:
        kernel = method.unquantized_backend
        return None if kernel.name in PLAIN_KERNELS else f"is computed by {kernel.value}"
    if method.is_monolithic:
        return "chooses experts within the kernel, as vLLM for CPUs did before 0.32"
    if layer.activation.value not in ACTIVATIONS or layer.swiglu_limit is not None:
        return f"has the activation {layer.activation.value}, which only vLLM's own kernel computes"
    if layer.apply_router_weight_on_input:
        return "has weighted inputs, which only vLLM's own kernel computes"
    layer.quant_method = PlainExperts(method.moe)
    return None
