"""Mixtures of experts and linear attention: counts of parameters, kept bytes, operations and states."""

import json

import pytest
import torch
from tests.plugins.plan.model import test_activations as of_dense
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

from rlhf_plugin_plan.machine.hardware import GIB
from rlhf_plugin_plan.memory.engine_memory import embedded_memory, kv_bytes
from rlhf_plugin_plan.model.activations import Precision, adapted_layer_bytes, layer_bytes
from rlhf_plugin_plan.model.adapters import count
from rlhf_plugin_plan.model.shapes import shape_of
from rlhf_plugin_plan.seconds.work import forward_flops, sequences

EXPERTS = {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 24}
SHARED = {**EXPERTS, "shared_expert_intermediate_size": 56}
LINEAR = {
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 24,
    "linear_value_head_dim": 40,
    "linear_conv_kernel_dim": 4,
}
FAMILIES = {
    "mixtral": {"num_local_experts": 8, "num_experts_per_tok": 3},
    "qwen2_moe": SHARED | {"norm_topk_prob": True},
    "qwen3_moe": EXPERTS,
    "qwen3_next": SHARED | LINEAR,
    "qwen3_5_text": LINEAR,
    "qwen3_5_moe_text": SHARED | LINEAR,
}
KINDS = [
    *((family, None) for family in FAMILIES if "linear_key_head_dim" not in FAMILIES[family]),
    *(
        (family, kind)
        for family in FAMILIES
        if "linear_key_head_dim" in FAMILIES[family]
        for kind in ("full_attention", "linear_attention")
    ),
]
"""Families, and the kind of all layers where there are several."""
QWEN3_30B = {
    "model_type": "qwen3_moe",
    "hidden_size": 2048,
    "moe_intermediate_size": 768,
    "intermediate_size": 6144,
    "num_hidden_layers": 48,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "norm_topk_prob": True,
    "vocab_size": 151936,
    "tie_word_embeddings": False,
}
QWEN3_5_SMALL = {
    "model_type": "qwen3_5_text",
    "hidden_size": 1024,
    "intermediate_size": 3584,
    "num_hidden_layers": 24,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "linear_num_value_heads": 16,
    "linear_num_key_heads": 16,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
    "vocab_size": 248320,
    "tie_word_embeddings": True,
}


def config_of(family, **more):
    sizes = of_dense.SIZES | FAMILIES[family] | {"model_type": family, "num_hidden_layers": 4}
    return sizes | more


@pytest.mark.parametrize("changes", [{}, {"mlp_only_layers": [2]}, {"decoder_sparse_step": 2}])
@pytest.mark.parametrize("family", FAMILIES)
def test_counts_are_those_of_transformers(family, changes):
    if changes and family not in ("qwen2_moe", "qwen3_moe", "qwen3_next"):
        changes = {}
    given = config_of(family, **changes)
    config = AutoConfig.for_model(**given)
    with torch.device("meta"):
        expected = AutoModelForCausalLM.from_config(config).num_parameters()

    whole = json.loads(config.to_json_string(use_diff=False))

    assert shape_of(given, family).parameters == expected
    assert shape_of(whole, family).parameters == expected


@pytest.mark.parametrize(
    ("family", "text"),
    [
        ("qwen3_vl_moe", "qwen3_moe"),
        ("qwen3_5", "qwen3_5_text"),
        ("qwen3_5_moe", "qwen3_5_moe_text"),
    ],
)
def test_counts_behind_a_vision_tower_are_those_of_transformers(family, text):
    own = {key: value for key, value in config_of(text).items() if key != "model_type"}
    vision = {"depth": 2, "hidden_size": 32, "intermediate_size": 48, "num_heads": 2}
    config = AutoConfig.for_model(
        family, text_config=own, vision_config={**vision, "out_hidden_size": 32}
    )
    with torch.device("meta"):
        expected = AutoModelForImageTextToText.from_config(config).num_parameters()

    whole = json.loads(config.to_json_string(use_diff=False))

    assert shape_of(whole, family).parameters == expected


def test_a_published_mixture_has_its_numbers():
    """Qwen3-30B-A3B: 30.5 billion parameters, of which 3.3 multiply a token with embeddings and head."""
    shape = shape_of(QWEN3_30B, "30b")

    assert shape.parameters == 30_532_122_624
    assert 3.3e9 < shape.active_weights + 2 * shape.head_weights < 3.4e9


@pytest.mark.parametrize("adapter", [None, "lora"])
@pytest.mark.parametrize(
    ("parameters", "compute"),
    [
        ("bfloat16", "bfloat16"),
        ("float32", "bfloat16"),
        pytest.param("float32", "float32", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize(("family", "kind"), KINDS)
def test_a_layer_keeps_what_the_formula_says(
    tmp_path, monkeypatch, family, kind, parameters, compute, adapter
):
    precision = Precision(parameters=parameters, compute=compute)
    saved, sizes = [], config_of(family)
    for layers in (2, 3):
        sizes |= {"num_hidden_layers": layers} | ({"layer_types": [kind] * layers} if kind else {})
        given = {k: v for k, v in sizes.items() if k not in ("model_type", "num_hidden_layers")}
        monkeypatch.setattr(of_dense, "SIZES", given)
        made = None if adapter is None else of_dense.adapter_of(adapter, rank=5)
        each = [
            of_dense.saved_bytes(family, layers, tokens, precision, adapter=made)
            for tokens in (128, 256)
        ]
        saved.append((each[1] - each[0]) / 128)

    kept = saved[1] - saved[0]

    shape = shape_of(sizes, family)
    if made is None:
        expected = layer_bytes(shape, precision, layer=2)
    else:
        (tmp_path / "config.json").write_text(json.dumps(sizes))
        layer = count(made, "adapter", tmp_path, precision).layers[-1]
        expected = adapted_layer_bytes(shape, precision, layer)
    assert kept == expected


STACKS = ("experts.gate_up_proj", "experts.down_proj")


@pytest.mark.parametrize("family", ["mixtral", "qwen3_moe", "qwen2_moe"])
def test_under_factors_of_experts_a_layer_keeps_their_sums_too(tmp_path, monkeypatch, family):
    """Of a token what a layer of experts reads, and whatever the tokens the sums W + s B A."""
    precision = Precision(parameters="bfloat16", compute="bfloat16")
    made = of_dense.adapter_of("lora", rank=5, target_parameters=STACKS, serve="merged")
    sizes = config_of(family, num_hidden_layers=3)
    given = {k: v for k, v in sizes.items() if k not in ("model_type", "num_hidden_layers")}
    monkeypatch.setattr(of_dense, "SIZES", given)
    saved = {
        (layers, tokens): of_dense.saved_bytes(family, layers, tokens, precision, adapter=made)
        for layers in (2, 3)
        for tokens in (128, 256)
    }
    grown = [saved[3, tokens] - saved[2, tokens] for tokens in (128, 256)]

    (tmp_path / "config.json").write_text(json.dumps(sizes))
    layer = count(made, "adapter", tmp_path, precision).layers[-1]

    shape = shape_of(sizes, family)
    assert layer.sums == shape.experts.stacked(shape.hidden)
    assert (grown[1] - grown[0]) / 128 == adapted_layer_bytes(shape, precision, layer)
    # Beside the sums the only arrays that do not grow with the tokens are numbers of tokens of each expert.
    assert 0 <= 2 * grown[0] - grown[1] - 2 * layer.sums <= 64 * shape.experts.number


def test_a_layer_of_other_widths_keeps_what_the_formula_says(monkeypatch):
    """No coefficient of the formula hides in another one's width."""
    precision = Precision(parameters="bfloat16", compute="bfloat16")
    other = {
        "linear_num_value_heads": 6,
        "linear_num_key_heads": 3,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 48,
        "linear_conv_kernel_dim": 3,
        "num_experts": 5,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 40,
        "shared_expert_intermediate_size": 8,
    }
    saved = []
    for layers in (2, 3):
        sizes = of_dense.SIZES | other | {"layer_types": ["linear_attention"] * layers}
        monkeypatch.setattr(of_dense, "SIZES", sizes)
        each = [of_dense.saved_bytes("qwen3_next", layers, n, precision) for n in (128, 256)]
        saved.append((each[1] - each[0]) / 128)
    shape = shape_of({**sizes, "model_type": "qwen3_next", "num_hidden_layers": 3}, "next")

    assert saved[1] - saved[0] == layer_bytes(shape, precision, layer=2)


def test_operations_are_those_of_a_tokens_own_experts():
    """Of 8 experts 3 compute a token: two operations for each of their weights, the router's and attention's."""
    shape = shape_of(config_of("qwen3_moe"), "moe")
    work = sequences(1, 0, 10)

    actual = forward_flops(shape, work, head=False)

    attention = 32 * (2 * 64 + 2 * 32)
    weights = 4 * (attention + 32 * 8 + 3 * (3 * 32 * 24))
    pairs = 10 * 11 // 2
    assert actual == 2 * weights * 10 + 4 * 64 * 4 * pairs


def test_a_decoding_step_reads_the_experts_that_some_sequence_chose():
    shape = shape_of(config_of("qwen3_moe"), "moe")
    expert = 4 * 3 * 32 * 24

    read = [shape.read_weights(tokens) - shape.linear_weights for tokens in (1, 2, 3, 100)]

    assert read == [3 * expert, 6 * expert, 8 * expert, 8 * expert]


def test_states_are_counted_for_each_sequence_and_keys_in_layers_with_attention_alone():
    """18 of 24 layers have 16 matrices of 128 x 128 in float32, and three inputs of 6144 channels."""
    shape = shape_of(QWEN3_5_SMALL, "0.8b")
    memory = embedded_memory(
        shape, "bfloat16", "bfloat16", slots=256, length=100, copies_weights=False
    )

    assert kv_bytes(shape, 2) == 2 * 6 * 512 * 2
    states = memory.parts["states of linear attention"]
    assert states == 256 * 18 * (4 * 16 * 128 * 128 + 2 * 3 * 6144)
    assert 4.5 < states / GIB < 4.7


def test_routes_take_a_byte_for_each_expert_of_a_token_and_two_beyond_128_experts():
    few, many = (shape_of({**QWEN3_30B, "num_experts": n}, "30b") for n in (128, 256))

    assert (few.route_bytes, many.route_bytes) == (48 * 8, 2 * 48 * 8)
