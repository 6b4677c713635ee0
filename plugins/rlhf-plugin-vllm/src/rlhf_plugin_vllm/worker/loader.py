"""A loader of vLLM models that keeps weights in a layout in which they can be replaced in place and read back."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Generator, Mapping
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from vllm.config import LoadConfig, ModelConfig, VllmConfig
from vllm.config.lora import LoRAConfig
from vllm.lora.utils import _all_lora_classes, process_packed_modules_mapping
from vllm.model_executor.layers.attention import Attention, MLAAttention
from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import (
    UnquantizedFusedMoEMethod,
)
from vllm.model_executor.layers.linear import LinearBase, UnquantizedLinearMethod
from vllm.model_executor.layers.vocab_parallel_embedding import UnquantizedEmbeddingMethod
from vllm.model_executor.model_loader import DefaultModelLoader
from vllm.platforms import current_platform
from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

from ..names import QUANTIZATION, UNPACKED, UNREAD
from .experts import keep_plain_experts
from .four_bits import FourBits
from .segments import remove_names


class PlainLinear(UnquantizedLinearMethod):
    """vLLM's method for linear layers, replaced by a product with the parameter itself.

    On a CPU vLLM multiplies by a packed copy and drops the parameter, so a write to the parameter would change nothing.
    """

    def process_weights_after_loading(self, layer: nn.Module) -> None:
        """Leave the parameter as it is."""

    def apply(self, layer: nn.Module, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """Return x W^T + bias."""
        return _product(layer, x, bias)


class PlainEmbedding(UnquantizedEmbeddingMethod):
    """vLLM's method for the output head, replaced by a product with the parameter itself."""

    def process_weights_after_loading(self, layer: nn.Module) -> None:
        """Leave the parameter as it is."""

    def apply(self, layer: nn.Module, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """Return x W^T + bias."""
        return _product(layer, x, bias)


def _product(layer: nn.Module, x: Tensor, bias: Tensor | None) -> Tensor:
    weight = layer.weight
    assert isinstance(weight, Tensor)
    return F.linear(x, weight, bias)


class PlainWeightsLoader(DefaultModelLoader):
    """vLLM's default loader, which leaves the loaded weights in the layout of a checkpoint."""

    def __init__(self, load_config: LoadConfig) -> None:
        settings = dict(load_config.model_loader_extra_config or {})
        self._quantization: Mapping[str, Any] | None = settings.pop(QUANTIZATION, None)
        self._is_unread: bool = settings.pop(UNREAD, False)
        self._four_bits: FourBits | None = None
        super().__init__(
            replace(load_config, load_format="auto", model_loader_extra_config=settings)
        )

    def load_model(
        self, vllm_config: VllmConfig, model_config: ModelConfig, prefix: str = ""
    ) -> nn.Module:
        """Load the model. For an engine with an adapter, choose the layers that vLLM makes ready for it."""
        # The worker's groups are whole by now: vLLM forms them before it makes the model.
        remove_names(of_groups_alone=True)
        model: nn.Module = super().load_model(vllm_config, model_config, prefix)
        if (adapters := vllm_config.lora_config) is not None:
            adapters.target_modules = adapted_layers(model, adapters)
        return model

    def load_weights(self, model: nn.Module, model_config: ModelConfig) -> None:
        """Load the weights, unless the first update brings all, then replace the methods that would rearrange them.

        Raises:
            ValueError: the model has a layer whose weights vLLM keeps in another layout.
        """
        if self._is_unread:
            _clear(model)
        elif self._quantization is None:
            super().load_weights(model, model_config)
        else:
            self._load_four_bits(model, model_config, self._quantization)
        for name, module in model.named_modules():
            _keep_plain(name, module)
            if current_platform.is_cpu() and isinstance(module, Attention):
                widen(module)

    def _load_four_bits(
        self, model: Any, model_config: ModelConfig, settings: Mapping[str, Any]
    ) -> None:
        """Load weights as the trainer computes with them, and leave on the model where those in 4 bits went."""
        device = next(model.parameters()).device
        self._four_bits = FourBits(settings, model_config, device)
        with self._four_bits.recorder:
            super().load_weights(model, model_config)
        setattr(model, UNPACKED, self._four_bits.placed())

    def get_all_weights(
        self, model_config: ModelConfig, model: nn.Module
    ) -> Generator[tuple[str, Tensor], None, None]:
        """Yield the weights of the files, those that the trainer holds in 4 bits unpacked."""
        weights = super().get_all_weights(model_config, model)
        yield from weights if self._four_bits is None else self._four_bits.unpacked(weights)


def _clear(model: nn.Module) -> None:
    """Have zeros for weights until the first update, as vLLM computes with them when it measures its memory."""
    for parameter in model.parameters():
        parameter.data.zero_()


def _keep_plain(name: str, module: Any) -> None:
    method = getattr(module, "quant_method", None)
    kind = type(method)
    if kind in (UnquantizedLinearMethod, UnquantizedEmbeddingMethod):
        if current_platform.is_cpu():
            module.quant_method = (
                PlainLinear() if kind is UnquantizedLinearMethod else PlainEmbedding()
            )
        return
    if kind is UnquantizedFusedMoEMethod:
        reason = keep_plain_experts(module, on_cpu=current_platform.is_cpu())
        if reason is None:
            return
        raise ValueError(
            f"layer {name}: {type(module).__name__} {reason}, so the engine vllm cannot replace weights of experts "
            "in place; take another engine for this model"
        )
    holds_weights = next(module.parameters(recurse=False), None) is not None
    # Latent attention, and a runner of experts that joins two gates, keep products of weights. These products would
    # not follow new weights.
    keeps_copies = isinstance(module, MLAAttention) or getattr(module, "_fse_fuse_gate", False)
    if keeps_copies or (method is not None and holds_weights):
        raise ValueError(
            f"layer {name}: {type(module).__name__} keeps weights in a form of its own, so the engine vllm cannot "
            "replace them in place. Latent attention and quantized models are such; take another engine for them"
        )


def adapted_layers(model: nn.Module, config: LoRAConfig) -> list[str]:
    """Return the names of the linear layers for which vLLM has a layer with an adapter.

    vLLM would also wrap the embeddings, the output head and the experts, with memory for factors of their sizes. Its
    prompt log-probs ignore an adapter of the head (vLLM issue 51594), and its kernels for experts with adapters do not
    compute with weights as a checkpoint has them.
    """
    # vLLM refuses a chosen layer for which it has no class, and its public function would build each layer to find out.
    packed = process_packed_modules_mapping(model)
    return [
        name
        # Also under further names of the same layer, by which vLLM's modules may call it.
        for name, layer in model.named_modules(remove_duplicate=False)
        if isinstance(layer, LinearBase)
        and any(
            kind.can_replace_layer(
                source_layer=layer,
                lora_config=config,
                packed_modules_list=packed.get(name.rpartition(".")[2], []),
                model_config=getattr(model, "config", None),
            )
            for kind in _all_lora_classes
        )
    ]


def widen(attention: Any) -> None:
    """Make one of vLLM's attention layers compute with heads of the next larger size that the kernel for CPUs has.

    Zeros are appended to query, key and value. The products of queries and keys do not change, and neither does the
    softmax, since vLLM keeps the scale as a separate number. The columns of zeros are cut off the output. Only small
    models have heads of such sizes.

    Raises:
        ValueError: the heads are larger than any size of the kernel.
    """
    sizes = sorted(CPUAttentionBackend.get_supported_head_sizes())
    narrow = attention.head_size
    at = bisect_left(sizes, narrow)
    if at == len(sizes):
        raise ValueError(f"attention heads of size {narrow}: vLLM on a CPU has at most {sizes[-1]}")
    wide = sizes[at]
    if wide == narrow:
        return

    attend = attention.forward

    def forward(
        query: Tensor, key: Tensor | None, value: Tensor | None, *rest: Any, **more: Any
    ) -> Tensor:
        # A layer with the keys and values of an earlier one gets none.
        padded = (
            None if part is None else _resized(part, narrow, wide) for part in (query, key, value)
        )
        output = attend(*padded, *rest, **more)
        heads = torch.unflatten(output, -1, (-1, wide))  # (N, H, wide)
        return heads[..., :narrow].flatten(-2)  # (N, H * narrow)

    attention.head_size = attention.head_size_v = attention.impl.head_size = wide
    # No hooks: models that vLLM takes from Transformers call `forward` itself.
    attention.forward = forward


def _resized(heads: Tensor, narrow: int, wide: int) -> Tensor:
    """Return (N, H * wide) heads with zeros appended to each, from (N, H * narrow) heads."""
    split = torch.unflatten(heads, -1, (-1, narrow))  # (N, H, narrow)
    return F.pad(split, (0, wide - narrow)).flatten(-2)
