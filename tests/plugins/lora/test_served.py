"""What engines get: factors that add up to merged weights, which compute as the adapted model, from a fixed base."""

import pytest
import torch
from tests.plugins.lora.conftest import (
    base_of,
    logits_of,
    own_logits,
    plain_model,
)

from rlhf_core import ConfigError
from rlhf_testing.errors import has_code
from rlhf_testing.tiny import FAMILIES, write_tiny_model
from rlhf_weights import weights_digest

MERGED = {"serve": "merged"}


def served(backend):
    return {name: tensor for bucket in backend.buckets() for name, tensor in bucket.items()}


def options_of(adapter):
    return MERGED if adapter == "lora" else {}


@pytest.mark.parametrize("adapter", ["lora", "dora"])
@pytest.mark.parametrize("family", FAMILIES)
def test_merged_weights_make_a_plain_model_that_computes_the_same(
    start, spec_of, models, family, adapter, train
):
    backend = start(spec_of(adapter, family, options=options_of(adapter)))
    train(backend)
    plain = plain_model(models[family])

    state = served(backend)

    assert list(state) == list(plain.state_dict())
    assert not torch.equal(logits_of(plain), own_logits(backend))
    merged = plain_model(models[family], state)
    # Gated linear attention divides keys and queries by their lengths, which are small with random weights.
    rounding = 1e-4 if family == "qwen3_5" else 1e-5
    torch.testing.assert_close(logits_of(merged), own_logits(backend), atol=rounding, rtol=1e-4)


@pytest.mark.parametrize("adapter", ["lora", "dora"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_merging_a_thousand_times_leaves_the_base_to_the_bit(start, spec_of, adapter, dtype):
    backend = start(spec_of(adapter, dtype=dtype, options=options_of(adapter)))
    before, first = base_of(backend), backend.checksum()

    for _ in range(1000):
        for _ in backend._model.adapter.merged_weights(backend._lm.model):
            pass

    torch.testing.assert_close(base_of(backend), before, atol=0, rtol=0)
    assert backend.checksum() == first


def test_a_merged_weight_is_rounded_once(start, spec_of):
    backend = start(spec_of(dtype="bfloat16", options=MERGED))
    name = "model.layers.0.mlp.up_proj"
    layer = backend._lm.model.get_submodule(name)
    a, b = (part["default"].weight.detach().double() for part in (layer.lora_A, layer.lora_B))

    actual = served(backend)[f"{name}.weight"]

    expected = layer.base_layer.weight.double() + 2.0 * b @ a  # alpha is twice the rank
    # Half a step of bfloat16 is at most 2^-8 of a number; beside it float32's own rounding.
    assert float(((actual.double() - expected) / expected).abs().max()) <= 2**-8 + 1e-6


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", FAMILIES)
def test_factors_are_named_by_modules_of_the_plain_model_and_make_up_the_difference(
    start, spec_of, models, family, dtype
):
    backend = start(spec_of(family=family, dtype=dtype, options={"alpha": 24, "rank": 8}))
    plain = plain_model(models[family]).to(getattr(torch, dtype)).state_dict()
    merged = dict(backend._model.adapter.merged_weights(backend._lm.model))

    factors = served(backend)

    assert {tensor.dtype for tensor in factors.values()} == {getattr(torch, dtype)}
    modules = {name.rpartition(".")[0] for name in factors}
    changed = {name for name in plain if not torch.equal(plain[name], merged[name])}
    assert {f"{module}.weight" for module in modules} == changed
    for module in modules:
        a, b = factors[f"{module}.lora_A"], factors[f"{module}.lora_B"]
        weight = plain[f"{module}.weight"]
        assert (a.shape, b.shape) == ((8, weight.shape[1]), (weight.shape[0], 8))
        made = (weight.float() + b.float() @ a.float()).to(weight.dtype)
        step = 1e-6 if dtype == "float32" else 2**-7
        torch.testing.assert_close(made, merged[f"{module}.weight"], atol=step, rtol=step)


def test_tied_weights_are_served_under_both_names(start, spec_of):
    state = served(start(spec_of(options=MERGED)))

    assert torch.equal(state["lm_head.weight"], state["model.embed_tokens.weight"])


@pytest.mark.parametrize("serve", ["adapter", "merged"])
def test_the_checksum_is_that_of_what_is_served(start, spec_of, serve, train):
    backend = start(spec_of(options={"serve": serve}))
    assert backend.checksum() == weights_digest(served(backend).items())
    before = backend.checksum()

    train(backend)

    assert backend.checksum() != before


def test_the_module_is_the_live_one(start, spec_of):
    backend = start(spec_of())

    assert backend.module() is backend._lm


def test_what_no_engine_serves_as_factors_is_refused_with_the_fix(start, spec_of, tmp_path):
    path = write_tiny_model(tmp_path, "llama", tied=False)
    for options in ({"target": ["lm_head", "q_proj"]}, {"modules_to_save": ["model.norm"]}):
        backend = start(spec_of(options=options, model_path=str(path)))
        with pytest.raises(
            ConfigError,
            match=r"--actor\.lora\.serve merged",
            check=has_code("adapter/unservable-layer"),
        ):
            served(backend)


@pytest.mark.parametrize(
    "options",
    [
        {"target": ["lm_head", "embed_tokens", "q_proj"]},
        {"modules_to_save": ["model.norm", "lm_head"]},
    ],
)
@pytest.mark.parametrize("adapter", ["lora", "dora"])
def test_heads_embeddings_and_whole_modules_are_merged(
    start, spec_of, tmp_path, adapter, options, train
):
    path = write_tiny_model(tmp_path, "llama", tied=False, initializer_range=0.2)
    options = {**options, **options_of(adapter)}
    backend = start(spec_of(adapter, options=options, model_path=str(path)))
    train(backend)

    merged = plain_model(path, served(backend))

    torch.testing.assert_close(logits_of(merged), own_logits(backend), atol=1e-5, rtol=1e-4)


def test_a_quantized_base_cannot_be_merged(start, spec_of):
    backend = start(spec_of("qlora"))
    with pytest.raises(ConfigError, check=has_code("adapter/quantized-base")):
        dict(backend._model.adapter.merged_weights(backend._lm.model))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_quantized_base_is_served_as_factors_beside_what_it_is_unpacked_to(
    start, spec_of, tmp_path, dtype
):
    # On processors with AVX-512 bitsandbytes 0.50 unpacks layers whose width is no multiple of a block (64 numbers) by
    # the scales of other blocks; the tiny models of the other tests have such layers.
    wide = write_tiny_model(tmp_path / "wide", hidden_size=64, initializer_range=0.2)
    backend = start(spec_of("qlora", dtype=dtype, model_path=str(wide)))
    state = plain_model(wide).state_dict()
    unpacked = dict(backend._model.adapter.unpacked_weights(backend._lm.model))

    factors = served(backend)

    assert backend.checksum() == weights_digest([*factors.items(), *unpacked.items()])
    assert {weight.dtype for weight in unpacked.values()} == {getattr(torch, dtype)}
    modules = {name.rpartition(".")[0] for name in factors}
    assert unpacked.keys() == {f"{module}.weight" for module in modules}
    for module in modules:
        name = f"{module}.weight"
        # Numbers of 4 bits lie up to a sixth of the largest apart; blocks have 64 numbers each.
        off = (unpacked[name].float() - state[name]).abs().max() / state[name].abs().max()
        assert 0.01 < off < 0.17
        state[name] = (
            unpacked[name].float()
            + factors[f"{module}.lora_B"].float() @ factors[f"{module}.lora_A"].float()
        )
    made = logits_of(plain_model(wide, state))
    step = 1e-4 if dtype == "float32" else 0.1
    torch.testing.assert_close(made, own_logits(backend).float(), atol=step, rtol=step)


def test_the_checksum_of_a_quantized_base_follows_its_factors(start, spec_of, train):
    backend = start(spec_of("qlora"))
    before = backend.checksum()

    train(backend)

    assert backend.checksum() != before
