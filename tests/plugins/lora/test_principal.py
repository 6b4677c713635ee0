"""PiSSA against PEFT's own: what the factors begin as, what is computed, served, exported and resumed."""

import json

import numpy as np
import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file
from tests.plugins.lora.conftest import base_of, logits_of, own_logits, plain_model, trained
from tests.plugins.torch.conftest import make_trajectories

from rlhf_core import ConfigError
from rlhf_plugin_lora.lora import LoraOptions
from rlhf_testing.errors import has_code

OPTIONS = {
    "init": "pissa",
    "rank": 4,
    "alpha": 8,
    "target": ["q_proj", "down_proj"],
    "rank_pattern": ["down_proj=3"],
    "alpha_pattern": ["layers.1.self_attn.q_proj=5"],
}
PREFIX = "base_model.model."


RANK_STABILIZED = {**OPTIONS, "use_rslora": True, "rank_pattern": [], "alpha_pattern": []}
"""PEFT does not convert patterns beside rank-stabilized scaling."""


def pefts(models, *, use_rslora=False):
    """PEFT's own model of these options, which has the residual in its base."""
    config = LoraConfig(
        r=4,
        lora_alpha=8,
        target_modules=["q_proj", "down_proj"],
        rank_pattern={} if use_rslora else {"down_proj": 3},
        alpha_pattern={} if use_rslora else {"layers.1.self_attn.q_proj": 5},
        use_rslora=use_rslora,
        init_lora_weights="pissa",
    )
    return get_peft_model(plain_model(models["qwen3"]), config)


def factors_of(model):
    return {n.removeprefix(PREFIX): p for n, p in model.named_parameters() if p.requires_grad}


def take(model, backend):
    """Give PEFT's model the factors that the backend has trained."""
    with torch.no_grad():
        for name, weight in trained(backend).items():
            factors_of(model)[name].copy_(weight)


@pytest.mark.parametrize("use_rslora", [False, True])
def test_the_factors_begin_as_pefts_and_the_model_as_the_base(start, spec_of, models, use_rslora):
    options = RANK_STABILIZED if use_rslora else OPTIONS
    backend = start(spec_of(options=options), fresh=True)
    peft = pefts(models, use_rslora=use_rslora)

    torch.testing.assert_close(trained(backend), dict(factors_of(peft)), atol=1e-6, rtol=1e-5)
    base = logits_of(plain_model(models["qwen3"]))
    torch.testing.assert_close(own_logits(backend), base, atol=1e-5, rtol=1e-4)


def test_a_pair_of_a_weight_by_hand(start, spec_of):
    """s B0 A0 of rank r is the nearest matrix of that rank: what is left has the other singular values."""
    backend = start(spec_of(options=OPTIONS), fresh=True)
    name, found = "model.layers.0.self_attn.q_proj", trained(backend)
    weight = base_of(backend)[f"{name}.base_layer.weight"]

    product = found[f"{name}.lora_B.default.weight"] @ found[f"{name}.lora_A.default.weight"]

    left = torch.linalg.svdvals(weight - 8 / 4 * product)
    torch.testing.assert_close(left[:-4], torch.linalg.svdvals(weight)[4:], atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(left[-4:], torch.zeros(4), atol=1e-5, rtol=0)


def test_what_is_trained_computes_as_pefts_model_on_the_residual(
    start, spec_of, models, train, tmp_path
):
    backend = start(spec_of(options=OPTIONS), fresh=True)
    before = base_of(backend)
    train(backend)
    peft = pefts(models)
    take(peft, backend)
    expected = logits_of(peft)

    torch.testing.assert_close(own_logits(backend), expected, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(base_of(backend), before, atol=0, rtol=0)
    model = backend._lm.model
    merged = plain_model(models["qwen3"], backend._model.adapter.merged_weights(model))
    torch.testing.assert_close(logits_of(merged), expected, atol=1e-5, rtol=1e-4)
    plain, factors = plain_model(models["qwen3"]), dict(backend._model.adapter.factors(model))
    state = plain.state_dict()
    for module in {name.rpartition(".")[0] for name in factors}:
        state[f"{module}.weight"] += factors[f"{module}.lora_B"] @ factors[f"{module}.lora_A"]
    torch.testing.assert_close(logits_of(plain), expected, atol=1e-5, rtol=1e-4)
    assert max(len(a) for n, a in factors.items() if n.endswith("A")) == 8
    assert backend._model.adapter.served_rank == 8


@pytest.mark.parametrize("use_rslora", [False, True])
def test_the_export_is_what_peft_converts_to(start, spec_of, models, train, tmp_path, use_rslora):
    options = RANK_STABILIZED if use_rslora else OPTIONS
    backend = start(spec_of(options=options), fresh=True)
    train(backend)
    backend.export(tmp_path / "ours")

    ours = PeftModel.from_pretrained(plain_model(models["qwen3"]), tmp_path / "ours")
    torch.testing.assert_close(logits_of(ours), own_logits(backend), atol=1e-5, rtol=1e-4)
    peft = pefts(models, use_rslora=use_rslora)
    peft.peft_config["default"].init_lora_weights = True  # PEFT warns of others while it converts
    peft.save_pretrained(tmp_path / "initial")
    take(peft, backend)
    peft.save_pretrained(
        tmp_path / "theirs",
        path_initial_model_for_weight_conversion=str(tmp_path / "initial"),
    )
    found, expected = (
        load_file(tmp_path / who / "adapter_model.safetensors") for who in ("ours", "theirs")
    )
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-5)
    one, other = (
        json.loads((tmp_path / who / "adapter_config.json").read_text())
        for who in ("ours", "theirs")
    )
    for key in ("r", "lora_alpha", "rank_pattern", "alpha_pattern", "init_lora_weights"):
        assert one[key] == other[key], key


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_reference_is_the_base_to_the_bit(start, spec_of, train, dtype):
    rows = make_trajectories()
    plain = start(spec_of(adapter=None, dtype=dtype), fresh=True)
    backend = start(spec_of(options=OPTIONS, dtype=dtype), fresh=True)
    train(backend)

    np.testing.assert_array_equal(backend.base_logprobs(rows), plain.logprobs(rows))
    names = set(trained(backend))
    assert names == {name for name in names if ".default." in name} != set()


def test_a_restored_run_goes_on_to_the_bit(start, spec_of, train, tmp_path):
    options = {**OPTIONS, "dropout": 0.3, "modules_to_save": ["model.norm"]}
    spec = spec_of(options=options)
    straight = start(spec, fresh=True)
    train(straight)
    straight.save(tmp_path)
    expected = train(straight, range(2, 4))
    resumed = start(spec, fresh=True)

    resumed.load(tmp_path)

    assert train(resumed, range(2, 4)) == expected
    torch.testing.assert_close(trained(resumed), trained(straight), atol=0, rtol=0)


def test_an_export_goes_on_as_a_plain_adapter(start, spec_of, train, tmp_path):
    first = start(spec_of(options=OPTIONS), fresh=True)
    train(first)
    first.export(tmp_path)

    second = start(spec_of(options={"init_from": str(tmp_path)}), fresh=True)

    torch.testing.assert_close(own_logits(second), own_logits(first), atol=1e-5, rtol=1e-4)


def test_what_has_no_principal_part_is_refused(start, spec_of):
    with pytest.raises(ConfigError, match="is 64", check=has_code("adapter/rank-too-large")):
        start(spec_of(options={"init": "pissa", "rank": 64}))
    with pytest.raises(ValueError, match="expected one of them"):
        LoraOptions(init="pissa", init_from="folder")
