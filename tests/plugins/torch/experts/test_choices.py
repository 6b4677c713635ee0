"""Choices of routers, taken down and given, in the families of Transformers."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from rlhf_core import ConfigError
from rlhf_testing.errors import has_code
from rlhf_torch.experts.choices import ExpertChoices, choices_of
from rlhf_torch.experts.routing import Routing

ROUTED = {"n_routed_experts": 8, "first_k_dense_replace": 1, "n_group": 2, "topk_group": 1}
LATENT = {
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
}
COMMON: dict[str, Any] = {
    "vocab_size": 32,
    "hidden_size": 32,
    "intermediate_size": 32,
    "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 16,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 8,
    "num_experts_per_tok": 2,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "eos_token_id": 2,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "qwen2_moe": {"num_experts": 8},
    "qwen3_moe": {"num_experts": 8},
    "qwen3_next": {"num_experts": 8},
    "qwen3_5_moe_text": {"num_experts": 8},
    "mixtral": {"num_local_experts": 8},
    "olmoe": {"num_experts": 8},
    "flex_olmo": {"num_experts": 8},
    "granitemoe": {"num_local_experts": 8},
    "deepseek_v2": {**ROUTED, **LATENT, "topk_method": "greedy"},
    "deepseek_v3": {**ROUTED, **LATENT},
    "glm4_moe": ROUTED,
    "ernie4_5_moe": {"moe_num_experts": 8, "moe_k": 2},
    "hunyuan_v1_moe": {"num_experts": 8, "moe_topk": 2},
    "minimax": {"num_local_experts": 8},
}
"""Families that the page on models names."""
TOKENS = torch.arange(4, 11)[None]


def tiny(family: str, **sizes: Any) -> PreTrainedModel:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        config = AutoConfig.for_model(family, **COMMON, **sizes)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, std=0.2)
    return model


@torch.no_grad()
def taken(choices: ExpertChoices, model: PreTrainedModel) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits, and the experts (N, L, k) of the tokens."""
    with choices.taken_down() as layers:
        logits = model(TOKENS, use_cache=False).logits
    return logits, torch.stack(layers, dim=1)


@pytest.mark.parametrize("family", FAMILIES)
def test_routers_take_what_they_would_have_chosen_and_what_they_would_not(family):
    model = tiny(family, **FAMILIES[family])
    plain = model(TOKENS, use_cache=False).logits

    choices = choices_of(model, "replay")
    seen, routes = taken(choices, model)
    found = {}
    for name, given in {"own": routes, "others": (routes + 1) % 8, "none": routes * 0 - 1}.items():
        choices.given = given.to(choices.dtype)
        found[name] = model(TOKENS, use_cache=False).logits

    assert choices.shape == tuple(routes.shape[1:])
    torch.testing.assert_close(seen, plain, atol=0.0, rtol=0.0)
    torch.testing.assert_close(found["own"], plain, atol=0.0, rtol=0.0)
    torch.testing.assert_close(found["none"], plain, atol=0.0, rtol=0.0)
    assert (found["others"] - plain).abs().max() > 1e-3


def test_the_given_experts_have_the_weights_of_the_router():
    """softmax over the four logits, of experts 0 and 3: (e^0, e^3) / (e^0 + e^3), as the family makes them sum to 1."""
    model = tiny("qwen3_moe", num_experts=4, norm_topk_prob=True)
    choices = choices_of(model, "replay")
    router = choices.routers[1]
    with torch.no_grad():
        router.weight.zero_()
        router.weight[:, 0] = torch.arange(4.0)
    choices.given = torch.tensor([[[0, 1], [0, 3], [0, 1]], [[0, 1], [-1, -1], [0, 1]]]).to(
        torch.int8
    )

    _, weights, experts = router(torch.eye(32)[:1].repeat(2, 1))

    odds = torch.exp(torch.tensor([0.0, 3.0]))
    own = torch.exp(torch.tensor([3.0, 2.0]))
    assert experts.tolist() == [[0, 3], [3, 2]]
    torch.testing.assert_close(weights[0], odds / odds.sum())
    torch.testing.assert_close(weights[1], own / own.sum())
    weights[0, 0].backward()
    gradient = router.weight.grad[
        :, 0
    ]  # of a / (a + b) by the logits: p (1 - p), and the others none
    share = float(odds[0] / odds.sum()) * float(odds[1] / odds.sum())
    torch.testing.assert_close(gradient, torch.tensor([share, 0.0, 0.0, -share]))


def test_a_copy_of_a_model_has_choices_of_its_own():
    model = tiny("qwen3_moe", num_experts=4)
    choices = choices_of(model, "replay")
    copied = copy.deepcopy(model)

    own = choices_of(copied, "replay")

    assert choices_of(model, "replay") is choices
    assert own is not choices
    assert own.routers[0] is not choices.routers[0]
    own.given = torch.zeros(7, 3, 2, dtype=torch.int8)
    assert choices.is_idle


def test_ids_have_a_sign_and_the_smallest_type():
    assert choices_of(tiny("qwen3_moe", num_experts=128), "replay").dtype == torch.int8
    assert choices_of(tiny("qwen3_moe", num_experts=129), "replay").dtype == torch.int16
    assert choices_of(tiny("qwen3_moe", num_experts=129), "replay").bytes_per_token == 3 * 2 * 2


@pytest.mark.parametrize(
    ("family", "sizes", "reason", "code"),
    [
        ("qwen3", {}, "Qwen3ForCausalLM has no experts", "model/no-experts"),
        (
            "phimoe",
            {"num_local_experts": 8},
            "PhimoeForCausalLM is not known to .0 calls of topk",
            "model/unknown-router",
        ),
        (
            "gpt_oss",
            {"num_local_experts": 8},
            "GptOssForCausalLM is not known to .3 routers, 0",
            "model/unknown-router",
        ),
    ],
)
def test_other_models_are_refused_by_name(family, sizes, reason, code):
    with pytest.raises(ConfigError, match=rf"^replay: .*{reason}", check=has_code(code)):
        choices_of(tiny(family, **sizes), "replay")


def test_a_reference_that_is_the_policy_without_its_adapter_chooses_by_itself():
    choices = choices_of(tiny("qwen3_moe", num_experts=4), "replay")
    routing = Routing("policy", [], [], coefficient=0.0, top_k=2, choices=choices)
    routes = np.zeros((7, 3, 2), dtype=np.int8)

    with routing.choosing():
        routing.follow(routes)
        assert choices.is_idle
    routing.follow(routes)
    assert not choices.is_idle
