"""A base in 4 bits behind vLLM, under an adapter, against the trainer that holds it."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("vllm")
pytest.importorskip("bitsandbytes")

from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

from rlhf_plugin_lora.qlora import QloraOptions, build
from rlhf_plugin_vllm.config import VllmEngineConfig
from rlhf_plugin_vllm.engine import VllmEngine
from rlhf_plugin_vllm.worker.four_bits import FourBits
from rlhf_weights import weights_digest

from .adapter_material import TOLERANCE, expected_logprobs

pytestmark = [pytest.mark.scale, pytest.mark.slow]

PROMPT = (5, 9, 12)
SEEDS = tuple(range(11, 15))
DOWN = "model.layers.1.mlp.down_proj"
ADAPTER = build(QloraOptions(rank=4))


def quantized(folder):
    """The trainer's model, with factors that change the most probable tokens."""
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, **ADAPTER.load_options()
    ).eval()
    model = ADAPTER.wrap(model, 0)
    draw = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.copy_(0.2 * torch.randn(parameter.shape, generator=draw))
    return model


def digest_of(model):
    """What the trainer compares: factors and unpacked weights."""
    return weights_digest([*ADAPTER.factors(model), *ADAPTER.unpacked_weights(model)])


@pytest.fixture(scope="module")
def trainer(folder):
    return quantized(folder)


@pytest.fixture(scope="module")
def engine(loop, spec, trainer, source_of, shared_engine):
    """The shared engine starts first: one that starts under the variable below answers only while it is set."""
    engine = VllmEngine(VllmEngineConfig(bucket_mib=1, kv_cache_gib=0.25, threads=1))
    config = ADAPTER.load_options()["quantization_config"]
    settings = json.loads(config.to_json_string(use_diff=False))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_ALLOW_INSECURE_SERIALIZATION", "1")
        source = source_of(dict(ADAPTER.factors(trainer)))
        started = replace(spec, adapter_rank=4, quantization=settings)
        loop.run_until_complete(engine.start(started, source))
        yield engine
        loop.run_until_complete(engine.close())


def flip_in_worker(worker, module):
    """Change the lowest bit of one number of the base, in the worker."""
    weight = worker.weight_transfer_engine.model.rlhf_unpacked[f"{module}.weight"].parts[0].kept
    weight.view(torch.int32)[0, 0] ^= 1


def test_sampler_and_trainer_compute_with_the_same_base(engine, run, make_request, folder, trainer):
    assert run(engine.checksum()) == digest_of(trainer)
    rows = run(engine.generate(make_request(PROMPT, seeds=SEEDS)))

    plain = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    differences = []
    for row in rows:
        actual = torch.from_numpy(row.logprobs)
        expected = expected_logprobs(trainer, PROMPT, row)
        torch.testing.assert_close(actual, expected, atol=TOLERANCE, rtol=0)
        differences.append((expected_logprobs(plain, PROMPT, row) - actual).abs().max())
    assert max(differences) > 0.1


def test_a_single_wrong_bit_of_the_base_changes_the_digest(engine, run, trainer):
    engine._updates._base = []
    run(engine._llm.collective_rpc(flip_in_worker, args=(DOWN,)))
    wrong = run(engine.checksum())
    run(engine._llm.collective_rpc(flip_in_worker, args=(DOWN,)))
    engine._updates._base = []

    assert wrong != digest_of(trainer)
    assert run(engine.checksum()) == digest_of(trainer)


@pytest.mark.parametrize("double", [True, False])
def test_a_folder_in_four_bits_is_unpacked_to_the_same_numbers(folder, tmp_path, double):
    config = BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=double
    )
    packed = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, quantization_config=config
    )
    packed.save_pretrained(tmp_path / "packed")
    settings = json.loads(config.to_json_string(use_diff=False))
    model = SimpleNamespace(dtype=torch.float32, hf_config=packed.config, trust_remote_code=False)

    found = []
    for path in (folder, tmp_path / "packed"):
        files = load_file(path / "model.safetensors")
        unpack = FourBits(settings, model, torch.device("cpu"))
        found.append(dict(unpack.unpacked(files.items())))

    plain, from_packed = found
    assert plain.keys() == from_packed.keys()
    for name, weight in plain.items():
        assert torch.equal(weight, from_packed[name]), name


@pytest.mark.parametrize("form", ["as it is", "in four bits"])
def test_a_base_in_bfloat16_is_unpacked_to_the_trainers_numbers_while_vllm_loads(
    folder, tmp_path, form
):
    """vLLM makes the model's dtype torch's default while it loads."""
    if form == "in four bits":
        packed = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.bfloat16, **ADAPTER.load_options()
        )
        folder = tmp_path / "packed"
        packed.save_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.bfloat16, **ADAPTER.load_options()
    )
    expected = dict(ADAPTER.unpacked_weights(ADAPTER.wrap(model, 0)))
    settings = json.loads(ADAPTER.load_options()["quantization_config"].to_json_string(False))
    served = SimpleNamespace(dtype=torch.bfloat16, hf_config=model.config, trust_remote_code=False)

    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        unpack = FourBits(settings, served, torch.device("cpu"))
        actual = dict(unpack.unpacked(load_file(folder / "model.safetensors").items()))
    finally:
        torch.set_default_dtype(before)

    assert expected.keys() <= actual.keys()
    for name, weight in expected.items():
        assert torch.equal(weight, actual[name]), name
