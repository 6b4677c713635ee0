"""Ranks and alphas of some modules, and modules that are left out, as PEFT computes them."""

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from tests.plugins.lora.conftest import logits_of, own_logits, plain_model, trained

from rlhf_core import ConfigError
from rlhf_plugin_lora.lora import LoraOptions
from rlhf_testing.errors import has_code

PATTERNS = {
    "rank": 4,
    "alpha": 8,
    "target": ["q_proj", "v_proj", "down_proj"],
    "exclude": [r"model\.layers\.0\.self_attn\.v_proj", "down_proj"],
    "rank_pattern": ["layers.1.self_attn.q_proj=6", "v_proj=2"],
    "alpha_pattern": ["layers.[01].self_attn.q_proj=3"],
}


def test_factors_scalings_and_outputs_are_those_of_peft(start, spec_of, models, tmp_path):
    backend = start(spec_of(options=PATTERNS))
    config = LoraConfig(
        r=4,
        lora_alpha=8,
        target_modules=["q_proj", "v_proj", "down_proj"],
        exclude_modules=r".*layers\.0\.self_attn\.v_proj|.*down_proj",
        rank_pattern={"layers.1.self_attn.q_proj": 6, "v_proj": 2},
        alpha_pattern={"layers.[01].self_attn.q_proj": 3},
    )
    peft = get_peft_model(plain_model(models["qwen3"]), config)
    theirs = {
        name.removeprefix("base_model.model."): parameter
        for name, parameter in peft.named_parameters()
        if parameter.requires_grad
    }

    assert {n: w.shape for n, w in trained(backend).items()} == {
        name: parameter.shape for name, parameter in theirs.items()
    }
    with torch.no_grad():
        for name, weight in trained(backend).items():
            theirs[name].copy_(weight)
    torch.testing.assert_close(own_logits(backend), logits_of(peft), atol=1e-6, rtol=1e-6)
    backend.export(tmp_path)
    loaded = PeftModel.from_pretrained(plain_model(models["qwen3"]), tmp_path)
    torch.testing.assert_close(own_logits(backend), logits_of(loaded), atol=1e-6, rtol=1e-6)


def test_engines_have_room_for_the_largest_rank_and_get_each_modules_own(start, spec_of, models):
    backend = start(spec_of(options=PATTERNS))

    factors = dict(backend._model.adapter.factors(backend._lm.model))

    ranks = {n: len(a) for n, a in factors.items() if n.endswith("lora_A")}
    assert ranks == {
        "model.layers.0.self_attn.q_proj.lora_A": 4,
        "model.layers.1.self_attn.q_proj.lora_A": 6,
        "model.layers.1.self_attn.v_proj.lora_A": 2,
    }
    assert backend._model.adapter.served_rank == 6
    plain = plain_model(models["qwen3"])
    state = plain.state_dict()
    for module in {name.rpartition(".")[0] for name in factors}:
        state[f"{module}.weight"] += factors[f"{module}.lora_B"] @ factors[f"{module}.lora_A"]
    torch.testing.assert_close(logits_of(plain), own_logits(backend), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(
    ("options", "message", "code"),
    [
        (
            {"rank_pattern": ["q_prog=2"]},
            "rank_pattern 'q_prog'.*the nearest are q_proj",
            "adapter/no-adapted-module",
        ),
        (
            {"alpha_pattern": ["lm_head=2"]},
            "alpha_pattern 'lm_head'.*no adapted module",
            "adapter/no-adapted-module",
        ),
        (
            {"alpha_pattern": ["(=2"]},
            "alpha_pattern '\\('.*expected a name or a regular expression",
            "adapter/target-expression",
        ),
        (
            {"exclude": ["q_prog"]},
            "exclude 'q_prog'.*the nearest are q_proj",
            "adapter/no-such-module",
        ),
        (
            {"exclude": ["q_proj"], "target": ["v_proj"]},
            "none of these modules would be adapted",
            "adapter/excludes-none",
        ),
        (
            {"exclude": ["q_proj"], "target": ["q_proj"]},
            "no module is left",
            "adapter/excludes-all",
        ),
    ],
)
def test_a_name_that_fits_nothing_is_refused(start, spec_of, options, message, code):
    with pytest.raises(ConfigError, match=message, check=has_code(code)):
        start(spec_of(options=options))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rank_pattern": ["q_proj"]}, "expected NAME=NUMBER"),
        ({"rank_pattern": ["q_proj=x"]}, "expected NAME=NUMBER"),
        ({"rank_pattern": ["q_proj=0"]}, "ranks of 1 to 1024"),
        ({"rank_pattern": ["q_proj=2.5"]}, "ranks of 1 to 1024"),
        ({"alpha_pattern": ["q_proj=nan"]}, "alphas above 0"),
    ],
)
def test_a_pattern_without_a_number_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        LoraOptions(**options)
