"""Counts by hand, of adapters of this repository and of one that only this file knows."""

import json
from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
from torch import nn

from rlhf_core import Component, Config, ConfigError, Registered
from rlhf_core.contracts import ComponentRef, RoleSpec
from rlhf_core.plugins import empty
from rlhf_plugin_lora import rlhf_model_adapters
from rlhf_plugin_plan.model.activations import AdaptedLayer, Precision
from rlhf_plugin_plan.model.adapters import AdaptedModels, UncountedAdapter, count
from rlhf_testing.errors import has_code
from rlhf_testing.fakes import WholeModel

BF16 = Precision(parameters="bfloat16", compute="bfloat16")
AUTOCAST = Precision(parameters="float32", compute="bfloat16")
ALL = AdaptedLayer(first_norm=True, second_norm=True, attention=True, product=True, own=224)
INPUTS, OUTPUTS = 4 * 1536 + 2 * 1536 + 8960, 1536 * 2 + 2 * 256 + 2 * 8960 + 1536
"""Widths of the seven matrices of a layer of Qwen2.5-1.5B: queries, keys, values, output; gate, up, down."""


@pytest.fixture
def counted(config_file):
    """Counts of an adapter of the plugin on a published shape."""

    def make(name, precision=BF16, *, model="qwen2.5-1.5b", **options):
        (component,) = (each for each in rlhf_model_adapters() if each.name == name)
        adapter = component.factory(component.config(**options))
        return count(adapter, name, config_file(model), precision)

    return make


def test_low_rank_factors_by_hand(counted):
    """28 layers x 16 x 41,216 inputs and outputs, as in docs/lora.md; each of 7 matrices B reads 16 numbers."""
    found = counted("lora")

    assert INPUTS + OUTPUTS == 41_216
    assert found.trained == found.matrices == found.added == found.factors == 28 * 16 * 41_216
    assert (found.tables, found.head, found.linear_weight_bytes) == (0, 0, None)
    assert found.largest == 16 * 8960
    assert found.layers == (ALL,) * 28


def test_under_autocast_each_matrix_keeps_a_cast_of_its_input(counted):
    (layer,) = set(counted("lora", AUTOCAST).layers)

    assert layer == AdaptedLayer(
        first_norm=False, second_norm=False, attention=False, product=False, own=224 + 2 * INPUTS
    )


def test_dropout_keeps_an_input_and_a_mask_of_its_own_for_each_matrix(counted):
    """A mask takes one byte an element, as on GPUs."""
    (layer,) = set(counted("lora", dropout=0.1).layers)

    assert layer.own == 224 + (2 + 1) * INPUTS
    assert not layer.first_norm


def test_dora_trains_lengths_and_keeps_both_products(counted):
    (layer,) = set((found := counted("dora")).layers)

    assert found.trained == 28 * (16 * 41_216 + OUTPUTS)
    assert found.matrices == 28 * 16 * 41_216
    assert found.factors == 0  # engines get merged weights
    assert layer == replace(ALL, own=224 + 2 * 2 * OUTPUTS)


def test_a_fixed_pair_beside_the_trained_one_is_sent_and_not_trained(counted):
    found = counted("lora", init="pissa")

    assert found.trained == 28 * 16 * 41_216
    assert found.factors == 2 * found.trained


def test_merged_weights_send_no_factors(counted):
    assert counted("lora", serve="merged").factors == 0


def test_a_base_in_4_bits_has_the_same_adapter(counted):
    pytest.importorskip("bitsandbytes")
    plain, quantized = counted("lora"), counted("qlora")
    single = counted("qlora", double_quantization=False)

    assert quantized.linear_weight_bytes == 0.5 + 1 / 64 + 4 / (64 * 256)
    assert single.linear_weight_bytes == 0.5 + 4 / 64
    assert replace(quantized, name="lora", linear_weight_bytes=None) == plain


def test_only_what_the_target_names_is_adapted_and_kept(counted):
    found = counted("lora", target=("q_proj",), rank=8)

    assert found.trained == 28 * 8 * (1536 + 1536)
    assert set(found.layers) == {
        AdaptedLayer(first_norm=True, second_norm=False, attention=False, product=False, own=16)
    }


def test_layers_below_the_first_adapted_one_keep_nothing(counted):
    found = counted("lora", target=(r".*layers\.2[67]\.mlp\.down_proj",))

    assert found.trained == 2 * 16 * (1536 + 8960)
    assert len(found.layers) == 2
    assert found.layers[0].product
    assert not found.layers[0].second_norm


def test_modules_that_are_trained_whole_are_counted(counted):
    """Both norms of each layer; the head of an untied model."""
    norms = counted("dora", modules_to_save=("input_layernorm", "post_attention_layernorm"))
    head = counted("lora", serve="merged", modules_to_save=("lm_head",), model="qwen2.5-7b")

    assert norms.trained == counted("dora").trained + 28 * 2 * 1536
    assert {layer.trained_norms for layer in norms.layers} == {2}
    assert head.head == head.tables == 152_064 * 3584
    assert head.trained == head.matrices + head.head


def test_an_option_that_does_not_fit_the_model_is_refused(counted):
    with pytest.raises(
        ConfigError, match="the nearest are q_proj", check=has_code("adapter/no-such-module")
    ):
        counted("lora", target=("q_prj",))


def test_a_config_that_contradicts_itself_is_one_error(config_file):
    (lora,) = (each for each in rlhf_model_adapters() if each.name == "lora")
    config = config_file("qwen2.5-1.5b")
    written = json.loads(config.read_text())
    config.write_text(json.dumps({**written, "layer_types": ["full_attention"] * 3}))

    with pytest.raises(
        ConfigError, match="num_hidden_layers", check=has_code("plan/refused-config")
    ):
        count(lora.factory(lora.config()), "lora", config, BF16)


class Gain(nn.Module):
    """A linear layer whose output is scaled by trained numbers, and moved by fixed ones."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base
        self.gain = nn.Parameter(torch.empty_like(base.weight[:, 0]))
        self.register_buffer("offset", torch.zeros_like(self.gain))

    def forward(self, hidden):
        return self.base(hidden) * self.gain + self.offset


class GainAdapter(WholeModel):
    """An adapter that no package knows: gains of all keys."""

    def wrap(self, model, seed):
        model.requires_grad_(False)
        for layer in model.model.layers:
            layer.self_attn.k_proj = Gain(layer.self_attn.k_proj)
        return model

    def training(self, model, seed):
        return nullcontext()


def test_an_adapter_of_another_package_is_counted_as_it_computes(config_file):
    """A gain's gradient needs the product that it scales, 256 numbers of 2 bytes, and no input of the matrix."""
    found = count(GainAdapter(Config()), "gain", config_file("qwen2.5-1.5b"), BF16)

    assert (found.trained, found.matrices) == (28 * 256, 0)
    assert set(found.layers) == {
        AdaptedLayer(first_norm=False, second_norm=False, attention=False, product=False, own=512)
    }


def test_an_adapter_that_trains_all_counts_as_full_training(config_file, published):
    found = count(WholeModel(Config()), "whole", config_file("qwen2.5-1.5b"), BF16)

    assert found.trained == published["qwen2.5-1.5b"]["parameters"]
    assert (found.matrices, found.added) == (28 * 1536 * (2 * 1536 + 2 * 256 + 3 * 8960), 0)
    assert found.head == found.tables == 151_936 * 1536  # tied
    assert set(found.layers) == {replace(ALL, own=0, trained_norms=2)}


class ReadsWeights(WholeModel):
    """An adapter that starts from numbers of the base."""

    made = 0

    def wrap(self, model, seed):
        type(self).made += 1
        float(model.model.norm.weight.sum())
        return model


def models_with(adapter):
    plugins = empty()
    component = Component(name="mine", factory=adapter)
    plugins.registries["rlhf_model_adapters"].add(Registered(component, "test"))
    return AdaptedModels(plugins)


def spec(**options):
    ref = ComponentRef(kind="rlhf_model_adapters", name="test:mine", options=options)
    return RoleSpec(role="policy", model_path="some/model", adapter=ref)


def test_an_adapter_that_reads_weights_cannot_be_counted_and_is_asked_once(config_file):
    models = models_with(ReadsWeights)

    for _ in range(2):
        with pytest.raises(UncountedAdapter, match="meta tensor"):
            models.counts(spec(), config_file("qwen2.5-0.5b"), BF16)
    assert ReadsWeights.made == 1


class LoadsDifferently(WholeModel):
    """An adapter whose base is quantized in a way of its own."""

    def load_options(self):
        return {"quantization_config": object()}


def test_a_quantization_that_is_not_known_is_said(config_file):
    models = models_with(LoadsDifferently)

    with pytest.raises(UncountedAdapter, match="its bytes of a weight are not known"):
        models.counts(spec(), config_file("qwen2.5-0.5b"), BF16)
