"""Which modules are adapted, in which dtype, from which seed; and what is refused by name."""

from importlib.metadata import distribution

import pytest
import torch
from tests.plugins.lora.conftest import (
    ADAPTERS,
    base_of,
    logits_of,
    own_logits,
    plain_model,
    trained,
)
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

from rlhf_core import ConfigError, MissingDependency, Registered, component
from rlhf_plugin_lora import qlora
from rlhf_plugin_lora.adapter import PeftAdapter
from rlhf_plugin_lora.lora import LoraOptions
from rlhf_plugin_lora.targets import adapted_modules
from rlhf_testing.errors import has_code
from rlhf_testing.tiny import FAMILIES, write_tiny_model
from rlhf_testing.tiny_vision import write_tiny_vision_model

ATTENTION = {"q_proj", "k_proj", "v_proj", "o_proj"}
MLP = {"gate_proj", "up_proj", "down_proj"}


def ends(backend):
    return {name.split(".lora_")[0].rpartition(".")[2] for name in trained(backend)}


LINEAR_ATTENTION = {"in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a", "out_proj"}


@pytest.mark.parametrize("family", FAMILIES)
def test_all_linear_layers_but_the_head_are_adapted(start, spec_of, family):
    backend = start(spec_of(family=family), fresh=True)

    beside = {"qwen3_moe": set(), "qwen3_5": MLP | LINEAR_ATTENTION}.get(family, MLP)
    assert ends(backend) == ATTENTION | beside
    assert all("lora_" in name for name in trained(backend))


def test_stacked_experts_are_left_alone_with_a_warning(start, spec_of, caplog):
    start(spec_of(family="qwen3_moe"), fresh=True)

    assert "stacked parameters" in caplog.text
    assert "83 % of all weights" in caplog.text


def write(tmp_path, model_type, **options):
    common = {
        "vocab_size": 100,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    config = AutoConfig.for_model(model_type, **{**common, **options})
    AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(tmp_path)
    return tmp_path


@pytest.mark.parametrize("adapter", ADAPTERS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_adapter_has_the_dtype_of_the_base(start, spec_of, adapter, dtype):
    backend = start(spec_of(adapter, dtype=dtype), fresh=True)

    assert {str(weight.dtype) for weight in trained(backend).values()} == {f"torch.{dtype}"}


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_the_seed_alone_decides_the_first_factors(start, spec_of, adapter):
    torch.manual_seed(1)
    state = torch.random.get_rng_state()
    first = trained(start(spec_of(adapter, seed=5), fresh=True))
    assert torch.equal(torch.random.get_rng_state(), state)
    torch.manual_seed(2)

    again = trained(start(spec_of(adapter, seed=5), fresh=True))
    other = trained(start(spec_of(adapter, seed=6), fresh=True))

    torch.testing.assert_close(again, first, atol=0, rtol=0)
    name = next(name for name in first if "lora_A" in name)
    assert not torch.equal(first[name], other[name])


@pytest.mark.parametrize("seed", [0, 2**64 - 1])
def test_every_seed_of_a_role_is_taken(start, spec_of, seed):
    start(spec_of(seed=seed), fresh=True)


def test_alpha_is_twice_the_rank_unless_it_is_set(start, spec_of):
    scalings = []
    for options in ({"rank": 4}, {"rank": 4, "alpha": 2}, {"rank": 4, "use_rslora": True}):
        backend = start(spec_of(options=options), fresh=True)
        layer = backend._lm.model.model.layers[0].mlp.up_proj
        scalings.append(layer.scaling["default"])
        assert layer.lora_A["default"].weight.shape == (4, 32)

    assert scalings == [2.0, 0.5, 4.0]  # 8/4, 2/4, 8/sqrt(4)


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        (["q_proj", "v_proj"], 4),
        (["self_attn.o_proj"], 2),
        (["model.layers.1.mlp.up_proj"], 1),
        ([r"model\.layers\.0\..*_proj"], 7),
        (["q_proj", r".*\.1\.mlp\..*_proj"], 5),
    ],
)
def test_targets_are_ends_of_names_or_expressions_for_whole_names(models, target, expected):
    assert len(adapted_modules(plain_model(models["qwen3"]), target)) == expected


def test_untied_heads_and_embeddings_may_be_adapted(start, spec_of, tmp_path):
    path = write_tiny_model(tmp_path, "llama", tied=False)
    options = {"target": ["embed_tokens", "lm_head", "q_proj"], "serve": "merged"}

    backend = start(spec_of(options=options, model_path=str(path)))

    assert {"lm_head", "q_proj"} <= ends(backend)


@pytest.mark.parametrize("adapter", ["lora", "dora"])
def test_a_family_with_weights_of_the_other_orientation(start, spec_of, tmp_path, adapter, train):
    path = write(tmp_path, "gpt2")
    backend = start(spec_of(adapter, options={}, model_path=str(path)))
    train(backend)

    merged = plain_model(path, backend._model.adapter.merged_weights(backend._lm.model))

    torch.testing.assert_close(logits_of(merged), own_logits(backend), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(
    ("family", "options", "message", "code"),
    [
        (
            "qwen3",
            {"target": ["q_prog"]},
            r"no module of that name; the nearest are q_proj",
            "adapter/no-such-module",
        ),
        (
            "qwen3",
            {"target": ["mlp"]},
            r"mlp is a Qwen3MLP; expected linear layers",
            "adapter/target-not-linear",
        ),
        (
            "qwen3",
            {"target": ["(q"]},
            r"expected a name or a regular expression",
            "adapter/target-expression",
        ),
        ("qwen3", {"target": ["lm_head"]}, r"lm_head shares its weight", "adapter/tied-weights"),
        (
            "qwen3",
            {"target": ["embed_tokens"]},
            r"embed_tokens shares its weight",
            "adapter/tied-weights",
        ),
        (
            "qwen3",
            {"modules_to_save": ["embed"]},
            r"modules_to_save 'embed'.*nearest",
            "adapter/no-such-module",
        ),
        (
            "qwen3",
            {"modules_to_save": ["lm_head"]},
            r"lm_head shares its weight",
            "adapter/tied-weights",
        ),
        (
            "qwen3_moe",
            {"target": ["gate_proj"]},
            r"no module of that name",
            "adapter/no-such-module",
        ),
        (
            "qwen3_moe",
            {"target": ["experts"]},
            r"experts is a Qwen3MoeExperts",
            "adapter/target-not-linear",
        ),
    ],
)
def test_modules_that_cannot_be_adapted_are_refused_by_name(
    start, spec_of, family, options, message, code
):
    with pytest.raises(ConfigError, match=message, check=has_code(code)):
        start(spec_of(family=family, options=options))


def test_a_missing_library_is_named_with_the_command_that_installs_it(monkeypatch):
    monkeypatch.setattr(component, "missing_requirements", lambda *_: ["bitsandbytes"])
    registered = Registered(qlora.COMPONENT, "lora", distribution("rlhf-plugin-lora"))

    with pytest.raises(
        MissingDependency,
        match=r"'rlhf-plugin-lora\[qlora\]'",
        check=has_code("plugin/missing-dependency"),
    ):
        registered.load()


def test_a_peft_folder_is_no_model(start, spec_of, tmp_path, models):
    start(spec_of()).export(tmp_path / "adapter")

    with pytest.raises(ConfigError, match="qwen3", check=has_code("model/is-an-adapter")):
        start(spec_of(model_path=str(tmp_path / "adapter")))


def test_the_base_is_frozen(start, spec_of):
    backend = start(spec_of(), fresh=True)

    assert set(base_of(backend)) == {
        name for name, _ in backend._model.named_weights() if "lora_" not in name
    }


def test_in_a_base_of_two_dtypes_each_layer_has_its_own(models):
    """Some families keep norms, or single layers, in float32."""
    model = plain_model(models["qwen3"]).to(torch.bfloat16)
    model.model.layers[0].mlp.up_proj.float()
    model.model.norm.float()
    options = LoraOptions(modules_to_save=("model.norm", "layers.1.input_layernorm"))

    wrapped = PeftAdapter(options).wrap(model, seed=0)

    layers = wrapped.model.layers
    assert layers[0].mlp.up_proj.lora_A["default"].weight.dtype == torch.float32
    assert layers[0].mlp.down_proj.lora_A["default"].weight.dtype == torch.bfloat16
    assert wrapped.model.norm.modules_to_save["default"].weight.dtype == torch.float32
    assert layers[1].input_layernorm.modules_to_save["default"].weight.dtype == torch.bfloat16


def test_tables_of_a_vision_tower_are_no_experts(tmp_path, caplog):
    """InternVL's position table has three axes, as stacked experts have."""
    path = write_tiny_vision_model(tmp_path / "model", "internvl")
    model = AutoModelForImageTextToText.from_pretrained(path)

    modules = adapted_modules(model, [])

    assert any(name.endswith("gate_proj") for name in modules)
    assert "experts" not in caplog.text
