"""The layers of a vLLM model that get room for an adapter: the linear ones."""

from __future__ import annotations

from torch import nn
from vllm.config.lora import LoRAConfig
from vllm.lora.utils import _all_lora_classes, process_packed_modules_mapping
from vllm.model_executor.layers.linear import LinearBase


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
