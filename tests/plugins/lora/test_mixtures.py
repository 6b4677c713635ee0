"""Linear layers beside stacked experts: adapted as by PEFT's all-linear, and left alone where PEFT misreads them."""

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from tests.plugins.lora.conftest import logits_of, own_logits, plain_model, trained
from tests.plugins.lora.test_wrapping import ATTENTION, MLP, ends, write

from rlhf_core import ConfigError
from rlhf_testing.errors import has_code
from rlhf_testing.tiny_text_families import write_tiny_text_model


def test_shared_experts_that_peft_would_mistake_for_stacked_ones_are_left_alone(
    start, spec_of, tmp_path
):
    path = write_tiny_text_model(tmp_path, "qwen3_next")

    backend = start(spec_of(model_path=str(path)), fresh=True)

    assert {*ATTENTION, "shared_expert_gate"} <= ends(backend)
    assert not ends(backend) & MLP


def test_dense_layers_beside_stacked_experts_are_adapted_where_peft_leaves_their_names_alone(
    start, spec_of, tmp_path
):
    """Layer 0 is dense. PEFT reads w1, w2 and w3 as experts in Mixtral, and not in this family."""
    layers = {"layer_types": ["conv", "full_attention"], "num_dense_layers": 1}
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
    path = write(tmp_path, "lfm2_moe", **layers, **experts)
    peft = get_peft_model(plain_model(path), LoraConfig(target_modules="all-linear"))
    expected = {name for name, weight in peft.named_parameters() if weight.requires_grad}

    backend = start(spec_of(model_path=str(path)), fresh=True)

    assert {"w1", "w2", "w3", "in_proj"} <= ends(backend)
    assert {f"base_model.model.{name}" for name in trained(backend)} == expected


def test_layers_whose_factors_peft_would_lose_are_left_alone(start, spec_of, tmp_path):
    """Transformers renames shared_expert of Laguna's files to shared_experts, and PEFT its factors once more."""
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
    sizes = {"head_dim": 8, "shared_expert_intermediate_size": 32, "sliding_window": 8}
    kinds = {"layer_types": ["full_attention"] * 2, "num_attention_heads_per_layer": [4, 4]}
    path = write(tmp_path / "model", "laguna", **experts, **sizes, **kinds)
    backend = start(spec_of(model_path=str(path)))

    backend.export(tmp_path / "adapter")

    own = PeftModel.from_pretrained(plain_model(path), tmp_path / "adapter").eval()
    torch.testing.assert_close(own_logits(backend), logits_of(own), atol=2e-5, rtol=1e-4)


def test_a_router_that_looks_like_a_linear_layer_is_left_alone(start, spec_of, tmp_path):
    """Phi-3.5-MoE's returns the experts that it has chosen, to which no factors could be added."""
    path = write(tmp_path, "phimoe", num_local_experts=4)

    assert ends(start(spec_of(model_path=str(path)), fresh=True)) == ATTENTION
    named = spec_of(model_path=str(path), options={"target": ("router",)})
    with pytest.raises(ConfigError, match="Router", check=has_code("adapter/target-not-linear")):
        start(named, fresh=True)
