"""A base in MXFP4 or FP8 under an adapter: what is merged into it, served of it and scored by it is unpacked."""

import json

import pytest
import torch
from tests.quantized_folders import EXPERTS, unpacked, write_quantized
from transformers import AutoModelForCausalLM

from rlhf_cli.main import main
from rlhf_core import ConfigError
from rlhf_plugin_inference.serving.model_source import ModelSource
from rlhf_plugin_inference.serving.options import ModelToServe
from rlhf_testing.errors import has_code

peft = pytest.importorskip("peft")

TOKENS = torch.tensor([[5, 9, 12, 40, 41, 7]])
FAMILIES = ("gpt_oss", "qwen3_moe")


@pytest.fixture(scope="module")
def bases(tmp_path_factory):
    root = tmp_path_factory.mktemp("quantized")
    return {family: write_quantized(root / family, family) for family in FAMILIES}


@pytest.fixture
def adapter(bases, tmp_path, request):
    """An adapter of a base, as PEFT writes it, with factors that matter."""
    base = bases[request.param]
    settings = peft.LoraConfig(r=4, target_modules=["q_proj", "o_proj"], task_type="CAUSAL_LM")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        model = peft.get_peft_model(unpacked(base), settings)
        for parameter in model.parameters():
            if parameter.requires_grad:
                torch.nn.init.normal_(parameter, std=0.3)
    model.peft_config["default"].base_model_name_or_path = str(base)
    model.save_pretrained(tmp_path / "adapter")
    return base, tmp_path / "adapter"


@torch.inference_mode()
def outputs_of(model):
    return model(input_ids=TOKENS).logits


@pytest.mark.parametrize("adapter", FAMILIES, indirect=True)
def test_a_merge_is_the_unpacked_base_plus_factors_without_a_quantization(adapter, tmp_path):
    base, folder = adapter

    assert main(["merge", str(base), str(folder), str(tmp_path / "out")]) == 0

    assert "quantization_config" not in json.loads((tmp_path / "out/config.json").read_text())
    merged, info = AutoModelForCausalLM.from_pretrained(
        tmp_path / "out", dtype="auto", output_loading_info=True
    )
    assert not any(info.values())
    assert merged.dtype == torch.bfloat16
    half = unpacked(base, torch.bfloat16)  # what a run in bfloat16 holds as its base
    plain = {name: weight.clone() for name, weight in half.state_dict().items()}
    expected = peft.PeftModel.from_pretrained(half.float(), folder).merge_and_unload()
    state = merged.state_dict()
    for name, weight in expected.state_dict().items():
        torch.testing.assert_close(state[name], weight.bfloat16(), atol=0, rtol=0)
        adapts = name.endswith(("q_proj.weight", "o_proj.weight"))
        assert torch.equal(weight.bfloat16(), plain[name]) is not adapts, name


@pytest.mark.parametrize("family", FAMILIES)
def test_buckets_for_engines_are_the_unpacked_weights(bases, family):
    source = ModelSource(ModelToServe(path=str(bases[family])), "float32")

    found = {name: tensor for bucket in source.buckets() for name, tensor in bucket.items()}

    expected = unpacked(bases[family]).state_dict()
    assert found.keys() == expected.keys()
    for name, weight in expected.items():
        assert torch.equal(found[name], weight), name


def test_a_base_that_is_not_unpacked_is_not_merged(bases, tmp_path, capsys):
    folder = write_quantized(tmp_path / "base", "qwen3_moe", **EXPERTS)
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "gptq"}
    (folder / "config.json").write_text(json.dumps(config))

    with pytest.raises(ConfigError, match="gptq", check=has_code("model/quantized")):
        ModelSource(ModelToServe(path=str(folder)), "float32").module()
