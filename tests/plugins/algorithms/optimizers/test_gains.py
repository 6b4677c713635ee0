"""Gains of norms neither decay nor are orthogonalized, also where they have two axes: one factor a head and channel."""

import pytest
from transformers import AutoModelForCausalLM, CohereConfig, LlamaConfig, Qwen3MoeConfig

from rlhf_core.contracts import RoleSpec
from rlhf_plugin_algorithms.optimizers import AdamConfig, MuonConfig, SgdConfig
from rlhf_plugin_algorithms.optimizers.adam import Adam
from rlhf_plugin_algorithms.optimizers.muon import Muon
from rlhf_plugin_algorithms.optimizers.sgd import Sgd
from rlhf_plugin_local.config import TorchBackendConfig
from rlhf_torch.models.role_model import build_role_model
from rlhf_torch.training.updater import Updater

SHAPE = {
    "vocab_size": 100,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "head_dim": 8}
CONFIGS = {
    "cohere": CohereConfig(**SHAPE, use_qk_norm=True),
    "llama": LlamaConfig(**SHAPE),
    "experts": Qwen3MoeConfig(**SHAPE, **EXPERTS),
}
OPTIMIZERS = {
    "adam": (Adam(AdamConfig(weight_decay=0.1)), "decay", "no_decay"),
    "sgd": (Sgd(SgdConfig(weight_decay=0.1)), "decay", "no_decay"),
    "muon": (Muon(MuonConfig(weight_decay=0.1)), "adam_decay", "adam_no_decay"),
}


@pytest.fixture
def groups_of(tmp_path):
    """The names in each parameter group that the torch backend makes, and the groups themselves."""

    def make(family, optimizer, dtype="float32"):
        AutoModelForCausalLM.from_config(CONFIGS[family]).save_pretrained(tmp_path)
        spec = RoleSpec(role="policy", model_path=str(tmp_path), dtype=dtype)
        role = build_role_model(spec, TorchBackendConfig(device="cpu"), None)
        role.requires_grad_(True)
        updater = Updater(role.named_trainable(), spec, optimizer)
        names = {id(master): name for name, master in updater.masters.items()}
        groups = updater.optimizer.param_groups
        return {group["name"]: {names[id(p)] for p in group["params"]} for group in groups}, groups

    return make


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("family", CONFIGS)
def test_gains_of_every_shape_do_not_decay(groups_of, family, optimizer, dtype):
    component, _, spared = OPTIMIZERS[optimizer]

    names, groups = groups_of(family, component, dtype)

    gains = {name for found in names.values() for name in found if "norm" in name}
    assert len(gains) == {"cohere": 7, "llama": 5, "experts": 9}[family]
    assert names[spared] == gains
    (group,) = [group for group in groups if group["name"] == spared]
    assert group["weight_decay"] == 0.0


def test_the_gains_of_cohere_have_two_axes(groups_of):
    """Otherwise the test before this one would show nothing."""
    _, groups = groups_of("cohere", OPTIMIZERS["muon"][0])

    shapes = {
        tuple(p.shape) for group in groups if "no_decay" in group["name"] for p in group["params"]
    }
    assert shapes == {(32,), (4, 8), (2, 8)}


def test_stacked_experts_decay_and_are_adamws(groups_of):
    names, _ = groups_of("experts", OPTIMIZERS["muon"][0])

    assert "model.layers.0.mlp.experts.down_proj" in names["adam_decay"]
    assert "model.layers.0.mlp.gate.weight" in names["muon"]


def test_muon_moves_a_gain_of_two_axes_as_adamw_does(groups_of):
    _, groups = groups_of("cohere", OPTIMIZERS["muon"][0])
    algorithms = {
        group["algorithm"] for group in groups for p in group["params"] if tuple(p.shape) == (4, 8)
    }

    assert algorithms == {"adamw"}
