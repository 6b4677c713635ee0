"""Plain LoRA as factors: what PEFT computes with them, and what is not plain."""

from __future__ import annotations

import json
import math

import pytest
import torch
from transformers import AutoModelForCausalLM

pytest.importorskip("peft")

from rlhf_torch.adapters.factors import factors, largest_rank, not_plain
from rlhf_torch.adapters.folder import read_adapter

PLAIN = {
    "lora": {},
    "ranks by pattern": {
        "rank_pattern": {"down_proj": 2},
        "alpha_pattern": {"0.self_attn.q_proj": 3},
    },
    "rank-stabilized": {"use_rslora": True},
}


def peft_deltas(base, adapter):
    """W + s B A - W of each adapted weight, as PEFT merges it."""
    from peft import PeftModel

    plain = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    before = {name: tensor.clone() for name, tensor in plain.state_dict().items()}
    merged = PeftModel.from_pretrained(plain, str(adapter)).merge_and_unload()
    after = merged.state_dict()
    return {n: after[n] - t for n, t in before.items() if not torch.equal(after[n], t)}


@pytest.mark.parametrize("options", PLAIN.values(), ids=PLAIN)
def test_the_product_of_the_factors_is_what_peft_adds(base, write_adapter, options):
    path = write_adapter(base, **options)
    folder = read_adapter(str(path))

    found = dict(factors(folder, torch.float32))

    expected = peft_deltas(base, path)
    modules = {name.rpartition(".")[0] for name in found}
    assert {f"{module}.weight" for module in modules} == expected.keys()
    for module in modules:
        product = found[f"{module}.lora_B"] @ found[f"{module}.lora_A"]
        torch.testing.assert_close(product, expected[f"{module}.weight"], atol=1e-5, rtol=1e-5)


def test_the_scaling_is_that_of_the_module(base, write_adapter):
    """r = 4, alpha = 8: s = 2; rank-stabilized 8 / sqrt(4) = 4; alpha 3 by pattern: 3 / 4."""
    for options, scaling in (
        ({}, 2.0),
        ({"use_rslora": True}, 8 / math.sqrt(4)),
        ({"alpha_pattern": {"q_proj": 3}}, 0.75),
    ):
        folder = read_adapter(str(write_adapter(base, **options)))
        found = dict(factors(folder, torch.float32))
        plain = dict(factors(read_adapter(str(write_adapter(base))), torch.float32))
        name = "model.layers.0.self_attn.q_proj.lora_B"
        torch.testing.assert_close(found[name], plain[name] / 2 * scaling)
        assert torch.equal(found[f"{name[:-1]}A"], plain[f"{name[:-1]}A"])


def test_factors_are_scaled_before_they_are_rounded(base, write_adapter):
    folder = read_adapter(str(write_adapter(base, lora_alpha=7)))

    exact, rounded = (dict(factors(folder, dtype)) for dtype in (torch.float32, torch.bfloat16))

    assert all(torch.equal(rounded[name], exact[name].bfloat16()) for name in exact)


def test_the_largest_rank_counts(base, write_adapter):
    folder = read_adapter(str(write_adapter(base, rank_pattern={"down_proj": 6})))

    assert largest_rank(folder) == 6


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({}, None),
        ({"use_dora": True}, "use_dora"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"target_modules": ["embed_tokens"]}, "embed_tokens"),
        ({"target_modules": ["q_proj", "lm_head"]}, "lm_head"),
        ({"bias": "lora_only"}, None),
    ],
)
def test_what_is_beside_factors_of_linear_layers_is_named(
    untied_base, write_adapter, options, reason
):
    folder = read_adapter(str(write_adapter(untied_base, **options)))
    model = AutoModelForCausalLM.from_pretrained(untied_base, dtype=torch.float32)

    said = not_plain(folder, model)

    assert said is None if reason is None else reason in said


@pytest.mark.parametrize(
    ("key", "value"), [("peft_type", "LOHA"), ("init_lora_weights", "pissa_niter_4")]
)
def test_a_kind_that_is_no_lora_or_changes_the_base_is_not_plain(base, write_adapter, key, value):
    path = write_adapter(base)
    config = json.loads((path / "adapter_config.json").read_text())
    (path / "adapter_config.json").write_text(json.dumps(config | {key: value}))
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)

    assert value in not_plain(read_adapter(str(path)), model)
