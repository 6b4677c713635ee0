"""``rlhf merge`` of adapters whose factors are those of stacked experts (PEFT's ``target_parameters``)."""

import json

import pytest
import torch
from tests.quantized_folders import unpacked, write_quantized
from transformers import AutoModelForCausalLM

from rlhf_cli.main import main

peft = pytest.importorskip("peft")

EXPERTS = ("mlp.experts.gate_up_proj", "mlp.experts.down_proj")


@pytest.fixture(params=["gpt_oss", "qwen3_moe"])
def base(request, tmp_path):
    return write_quantized(tmp_path / "base", request.param)


@pytest.fixture(params=[EXPERTS, EXPERTS[1:]], ids=["both", "one"])
def trained(base, tmp_path, request):
    """The base in bfloat16 with an adapter as PEFT computes it in float32, and the adapter's folder."""
    settings = peft.LoraConfig(
        r=2,
        target_modules=["q_proj", "o_proj"],
        target_parameters=list(request.param),
        task_type="CAUSAL_LM",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        model = peft.get_peft_model(unpacked(base, torch.bfloat16).float(), settings)
        for parameter in model.parameters():
            if parameter.requires_grad:
                torch.nn.init.normal_(parameter, std=0.1)
    model.peft_config["default"].base_model_name_or_path = str(base)
    model.save_pretrained(tmp_path / "adapter")
    return model.eval(), tmp_path / "adapter"


def test_the_merged_experts_are_those_of_peft(base, trained, tmp_path):
    model, folder = trained

    assert main(["merge", str(base), str(folder), str(tmp_path / "out")]) == 0

    merged, info = AutoModelForCausalLM.from_pretrained(
        tmp_path / "out", dtype="auto", output_loading_info=True
    )
    assert not any(info.values())
    state, before = merged.state_dict(), unpacked(base, torch.bfloat16).state_dict()
    adapted = ("q_proj.weight", "o_proj.weight", *model.peft_config["default"].target_parameters)
    for name, weight in model.merge_and_unload().state_dict().items():
        assert torch.equal(state[name], weight.bfloat16()), name
        assert torch.equal(state[name], before[name]) is not name.endswith(adapted), name


def test_factors_of_another_shape_are_refused(base, trained, tmp_path, capsys):
    _, folder = trained
    family = json.loads((base / "config.json").read_text())["model_type"]
    wider = {"gpt_oss": "intermediate_size", "qwen3_moe": "moe_intermediate_size"}[family]
    other = write_quantized(tmp_path / "other", family, **{wider: 96})

    assert main(["merge", str(other), str(folder), str(tmp_path / "out"), "--same-base"]) == 2

    assert "does not fit" in (said := capsys.readouterr().err)
    assert "mlp.experts" in said
