"""Which modules are routers and experts, family by family, and what the balancing loss of each is."""

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from rlhf_core import ConfigError
from rlhf_testing.errors import has_code
from rlhf_torch.experts.family import (
    coefficient_of,
    routers_of,
    stacks_of,
    top_k_of,
)
from rlhf_torch.experts.routing import open_routing
from rlhf_torch.models.modeling import CausalLM
from rlhf_torch.packed import attention
from rlhf_torch.packed.packing import PackedLayout

SIZES = {
    "vocab_size": 40,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "num_experts_per_tok": 2,
    "pad_token_id": 0,
}
FAMILIES = {
    "mixtral": {"num_local_experts": 4},
    "qwen2_moe": {
        "num_experts": 4,
        "moe_intermediate_size": 8,
        "shared_expert_intermediate_size": 8,
    },
    "qwen3_moe": {"num_experts": 4, "moe_intermediate_size": 8, "head_dim": 8},
    "olmoe": {"num_experts": 4},
    "granitemoe": {"num_local_experts": 4},
    "phimoe": {"num_local_experts": 4},
    "flex_olmo": {"num_experts": 4},
}
BIASED = {
    "n_routed_experts": 4,
    "moe_intermediate_size": 8,
    "first_k_dense_replace": 0,
    "n_group": 1,
    "topk_group": 1,
    "n_shared_experts": 1,
    "kv_lora_rank": 8,
    "q_lora_rank": 8,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 8,
    "v_head_dim": 8,
}


def tiny(family, **entries):
    config = AutoConfig.for_model(family, **SIZES, **entries)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return AutoModelForCausalLM.from_config(config, attn_implementation=attention.NAME).eval()


@pytest.mark.parametrize("family", FAMILIES)
def test_the_logits_of_routers_are_those_that_transformers_balances(family):
    model = tiny(family, **FAMILIES[family])
    tokens = torch.arange(1, 13)
    layout = PackedLayout(torch.tensor([0, 12]), torch.device("cpu"))
    seen = []
    routers = routers_of(model)
    for router in routers:
        router.module.register_forward_hook(
            lambda module, inputs, output, index=router.place: seen.append(output[index])
        )
    chosen = []
    for stack in stacks_of(model):
        stack.register_forward_pre_hook(lambda module, inputs: chosen.append(inputs[1]))

    with torch.no_grad():
        CausalLM(model, torch.float32).hidden(tokens, layout.positions(), layout)
        mine, seen[:] = [logits.clone() for logits in seen], []
        output = model.base_model(
            input_ids=tokens[None],
            position_ids=layout.positions()[None],
            use_cache=False,
            layout=layout,
            output_router_logits=True,
        )

    assert len(routers) == len(stacks_of(model)) == 2
    assert top_k_of(model) == chosen[0].shape[-1] == 2
    torch.testing.assert_close(tuple(mine), output.router_logits, atol=0, rtol=0)
    for logits, experts in zip(mine, chosen, strict=False):
        same = logits.topk(2, dim=-1).indices.sort().values
        assert family == "phimoe" or torch.equal(same, experts.sort().values)
    assert coefficient_of(model, None) == 0.0
    assert coefficient_of(model, 0.5) == 0.5
    model.config.output_router_logits = True
    assert coefficient_of(model, None) == model.config.router_aux_loss_coef > 0


def test_a_family_without_the_loss_has_none_and_refuses_a_factor():
    model = tiny("deepseek_v3", **BIASED, output_router_logits=True)

    assert coefficient_of(model, None) == 0.0
    with pytest.raises(
        ConfigError,
        match=r"DeepseekV3ForCausalLM.*router_aux_loss 0",
        check=has_code("model/unknown-balancing-loss"),
    ):
        coefficient_of(model, 0.1)


def test_a_family_with_a_formula_of_its_own_is_refused_where_its_configuration_asks_for_it():
    """Doge's experts are the products of two halves of keys."""
    model = tiny("doge", is_moe=True, num_experts=16, output_router_logits=True)

    with pytest.raises(
        ConfigError,
        match=r"output_router_logits true.*DogeForCausalLM",
        check=has_code("model/unknown-balancing-loss"),
    ):
        coefficient_of(model, None)
    assert coefficient_of(model, 0.0) == 0.0


def test_biases_that_balance_are_named_once_and_the_load_is_recorded(make_spec, caplog):
    routing = open_routing(make_spec("model"), tiny("deepseek_v3", **BIASED))

    assert routing is not None
    assert routing.coefficient == 0.0
    (record,) = [each for each in caplog.records if each.levelname == "WARNING"]
    assert "e_score_correction_bias in 2 layers), which training leaves as it is" in record.message


def test_routers_without_a_bias_are_not_warned_of(make_spec, caplog):
    assert open_routing(make_spec("model"), tiny("mixtral", num_local_experts=4)) is not None
    assert not [each for each in caplog.records if each.levelname == "WARNING"]


def test_a_model_without_experts_refuses_any_factor():
    for factor in (0.0, 0.1):
        with pytest.raises(
            ConfigError, match="LlamaForCausalLM", check=has_code("model/no-experts")
        ):
            coefficient_of(tiny("llama"), factor)
