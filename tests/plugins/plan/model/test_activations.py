"""The bytes that a layer keeps, counted on the real modules: every tensor that autograd saves, each storage once."""

import json
from contextlib import nullcontext

import pytest
import torch
from transformers import AttentionInterface, AutoConfig, AutoModelForCausalLM

from rlhf_plugin_lora import rlhf_model_adapters
from rlhf_plugin_plan.model.activations import (
    Precision,
    adapted_layer_bytes,
    checkpoint_bytes,
    layer_bytes,
)
from rlhf_plugin_plan.model.adapters import count
from rlhf_plugin_plan.model.shapes import shape_of

PROBE = "plan_probe"
SIZES = {
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 80,
    "vocab_size": 64,
}


class VarlenLike(torch.autograd.Function):
    """Keeps what kernels keep in which heads share keys and values: queries, keys, values, output, and a float32 number
    for each head."""

    @staticmethod
    def forward(ctx, query, key, value):
        # Kernels write the heads of a token side by side, as the next product reads them.
        batch, heads, tokens, width = query.shape
        output = query.new_zeros(batch, tokens, heads, width).transpose(1, 2)
        ctx.save_for_backward(query, key, value, output, query.new_zeros(query.shape[:-1]).float())
        return output

    @staticmethod
    def backward(ctx, grad):
        raise AssertionError("only what the forward pass keeps is counted")


@torch.compiler.disable  # as the backends' attention, which stays out of compiled layers
def attention(module, query, key, value, mask, **_):
    if torch.is_autocast_enabled("cpu"):
        query, key, value = (part.to(torch.bfloat16) for part in (query, key, value))
    return VarlenLike.apply(query, key, value).transpose(1, 2), None


AttentionInterface.register(PROBE, attention)


def adapter_of(name, **options):
    (component,) = (each for each in rlhf_model_adapters() if each.name == name)
    return component.factory(component.config(**options))


def saved_bytes(
    family, layers, tokens, precision, *, recompute=False, adapter=None, compiled=False
):
    config = AutoConfig.for_model(family, **SIZES, num_hidden_layers=layers, use_cache=False)
    dtype = getattr(torch, precision.parameters)
    model = AutoModelForCausalLM.from_config(config, attn_implementation=PROBE, dtype=dtype)
    if recompute:
        model.gradient_checkpointing_enable({"use_reentrant": False})
        model.train()
    if adapter is not None:
        model = adapter.wrap(model, 0)
    if compiled:
        for layer in model.model.layers:
            # What is kept is decided before code is made, by the same rules as for GPUs.
            layer.compile(backend="aot_eager_decomp_partition", dynamic=False)
    found = {}

    def note(tensor):
        storage = tensor.untyped_storage()
        found[storage.data_ptr()] = (
            storage.nbytes(),
            tensor,
        )  # held, so that no address comes twice
        return tensor

    parameters = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    autocast = torch.autocast("cpu", torch.bfloat16) if precision.casts else nullcontext()
    hooks = torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor)
    with autocast, hooks:
        model.model(input_ids=torch.zeros(1, tokens, dtype=torch.int64))
    return sum(size for address, (size, _) in found.items() if address not in parameters)


def bytes_of_a_layer(family, precision, **options):
    """Of one token: what a layer more and 64 tokens more add."""
    grown = [
        saved_bytes(family, layers, 128, precision, **options)
        - saved_bytes(family, layers, 64, precision, **options)
        for layers in (2, 3)
    ]
    return (grown[1] - grown[0]) / 64


@pytest.mark.parametrize("parameters", ["bfloat16", "float32"])
@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3", "gemma3_text"])
def test_a_layer_keeps_what_the_formula_says(family, parameters):
    precision = Precision(parameters=parameters, compute="bfloat16")
    shape = shape_of(SIZES | {"model_type": family, "num_hidden_layers": 3}, family)

    assert bytes_of_a_layer(family, precision) == layer_bytes(shape, precision)


def test_float32_without_autocast_too():
    precision = Precision(parameters="float32", compute="float32")
    shape = shape_of(SIZES | {"model_type": "qwen2", "num_hidden_layers": 3}, "qwen2")

    assert bytes_of_a_layer("qwen2", precision) == layer_bytes(shape, precision)


@pytest.mark.parametrize("parameters", ["bfloat16", "float32"])
def test_a_recomputed_layer_keeps_its_input(parameters):
    precision = Precision(parameters=parameters, compute="bfloat16")
    shape = shape_of(SIZES | {"model_type": "qwen2", "num_hidden_layers": 3}, "qwen2")

    kept = bytes_of_a_layer("qwen2", precision, recompute=True)

    assert kept == checkpoint_bytes(shape, precision)


@pytest.mark.parametrize("parameters", ["bfloat16", "float32"])
@pytest.mark.parametrize(
    ("family", "name", "options"),
    [
        ("qwen2", "lora", {}),
        ("qwen3", "lora", {"rank": 3}),
        ("llama", "lora", {"target": ("q_proj", "down_proj")}),
        ("mistral", "dora", {}),
        ("qwen2", "dora", {"modules_to_save": ("input_layernorm",)}),
    ],
)
def test_a_layer_under_an_adapter_keeps_what_the_formula_says(
    tmp_path, family, name, options, parameters
):
    precision = Precision(parameters=parameters, compute="bfloat16")
    adapter = adapter_of(name, **options)

    kept = bytes_of_a_layer(family, precision, adapter=adapter)

    assert kept == adapted_bytes(tmp_path, family, adapter, precision)


def adapted_bytes(tmp_path, family, adapter, precision, **options):
    config = SIZES | {"model_type": family, "num_hidden_layers": 3}
    (tmp_path / "config.json").write_text(json.dumps(config))
    layer = count(adapter, "adapter", tmp_path, precision).layers[-1]
    return adapted_layer_bytes(shape_of(config, family), precision, layer, **options)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")  # torch's own
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # torch's compiler imports it
@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "options"),
    [("qwen2", None), ("qwen3", None), ("qwen3", {}), ("qwen2", {"target": ("q_proj",)})],
)
def test_a_compiled_layer_keeps_what_the_formula_says(tmp_path, family, options):
    precision = Precision(parameters="bfloat16", compute="bfloat16")
    adapter = None if options is None else adapter_of("lora", **options)
    torch.compiler.reset()

    kept = bytes_of_a_layer(family, precision, adapter=adapter, compiled=True)

    if adapter is None:
        shape = shape_of(SIZES | {"model_type": family, "num_hidden_layers": 3}, family)
        assert kept == layer_bytes(shape, precision, compiled=True)
    else:
        assert kept == adapted_bytes(tmp_path, family, adapter, precision, compiled=True)
