"""In which form an engine gets an adapter, and that a quantized base is served with its own."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path

import pytest
import torch
from tests.quantized_folders import pack, unpacked
from transformers import AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig

from rlhf_config import Layer, resolve_options
from rlhf_core import CapabilityError, ConfigError
from rlhf_core import plugins as plugin_loader
from rlhf_core.contracts import GenerationRequest, SamplingParams, Uid
from rlhf_plugin_inference.chat.options import CHAT
from rlhf_plugin_inference.serving.adapter_form import form_of
from rlhf_plugin_inference.serving.served import renderer_of, serving
from rlhf_testing.errors import has_code

pytest.importorskip("peft")


def resolved(base, adapter, *, serve="auto", quantize="none", **engine):
    adapted = {"adapter": str(adapter), "serve": serve, "quantize": quantize}
    values = {
        "model": {"path": str(base), **adapted},
        "engine": {"name": "embedded", **engine},
    }
    return resolve_options([Layer.of(values)], plugin_loader.load(), CHAT)


def form(options):
    return form_of(options.run.model, options.one("engine.name"))


def greedy(options, prompt=(5, 9, 12)):
    async def work():
        context = serving(
            options.run.model,
            options.one("engine.name"),
            renderer_of(options.run.model),
            max_length=32,
            max_concurrency=2,
        )
        async with context as engine:
            (answer,) = await engine.generate(
                GenerationRequest(
                    uid=Uid(0, 0),
                    prompt_ids=prompt,
                    seeds=(1,),
                    sampling=SamplingParams(temperature=0, max_new_tokens=8, min_new_tokens=8),
                )
            )
            return answer

    return asyncio.run(work())


@pytest.mark.parametrize(
    ("serve", "options", "rank"),
    [
        ("auto", {}, 4),
        ("adapter", {}, 4),
        ("merged", {}, None),
        ("auto", {"use_dora": True}, None),
        ("auto", {"rank_pattern": {"q_proj": 2}}, 4),
    ],
)
def test_plain_lora_stays_beside_the_base_unless_it_is_to_be_merged(
    base, write_adapter, serve, options, rank
):
    adapter = write_adapter(base, **options)

    assert form(resolved(base, adapter, serve=serve)).rank == rank


def test_the_reason_is_in_the_start_line(base, write_adapter):
    adapter = write_adapter(base, use_dora=True)

    assert str(form(resolved(base, adapter))) == (
        f"adapter {adapter}: merged into the weights (its config has use_dora)"
    )


def test_what_is_not_plain_cannot_be_asked_for_beside_the_base(base, write_adapter):
    adapter = write_adapter(base, use_dora=True)

    with pytest.raises(
        ConfigError,
        match=r"use_dora.*--model\.serve merged",
        check=has_code("adapter/not-beside-base"),
    ):
        form(resolved(base, adapter, serve="adapter"))


def test_factors_of_another_shape_are_refused_before_a_weight_is_read(base, write_adapter):
    adapter = write_adapter(base)
    config = json.loads((adapter / "adapter_config.json").read_text())
    (adapter / "adapter_config.json").write_text(json.dumps(config | {"r": 3}))

    with pytest.raises(
        ConfigError,
        match="with the rank r = 3 of its config",
        check=has_code("adapter/does-not-fit"),
    ):
        form(resolved(base, adapter))


def test_an_engine_that_refuses_the_adapter_gets_it_merged_and_the_line_says_so(
    base, write_adapter, capsys
):
    adapter = write_adapter(base)
    copying = {"embedded": {"weights": "copy"}}

    answer = greedy(resolved(base, adapter, **copying))

    assert "merged into the weights (the engine refuses it: " in capsys.readouterr().err
    beside = greedy(resolved(base, adapter))
    assert answer.token_ids.tolist() == beside.token_ids.tolist()
    with pytest.raises(
        CapabilityError, match=r"--model\.serve merged", check=has_code("adapter/not-servable")
    ):
        greedy(resolved(base, adapter, serve="adapter", **copying))


def in_four_bits(base, **options):
    """The base as a Transformers model in 4 bits."""
    pytest.importorskip("bitsandbytes")
    how = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", **options)
    return AutoModelForCausalLM.from_pretrained(base, quantization_config=how, dtype=torch.float32)


@pytest.fixture
def quantized(base, tmp_path):
    """The base in 4 bits, as a folder."""
    in_four_bits(base).save_pretrained(tmp_path / "base4")
    AutoTokenizer.from_pretrained(base).save_pretrained(tmp_path / "base4")
    return tmp_path / "base4"


def check_against_peft(answer, plain, adapter):
    """Compare with a slow loop of PEFT's own model: each token by a pass over the whole sequence."""
    from peft import PeftModel

    model = PeftModel.from_pretrained(plain, str(adapter)).eval()
    for module in model.modules():
        module.support_avx512bf16_for_cpu = False  # rounds to bfloat16, and fits wide layers alone
    tokens, expected = [5, 9, 12], []
    with torch.inference_mode():
        for _ in range(8):
            logits = model(torch.tensor([tokens])).logits[0, -1].float()
            logits[2] = -torch.inf  # end-of-sequence, before min_new_tokens
            logprobs = logits.log_softmax(-1)
            tokens.append(int(logprobs.argmax()))
            expected.append(float(logprobs.max()))
    assert answer.token_ids.tolist() == tokens[3:]
    assert answer.logprobs.tolist() == pytest.approx(expected, abs=1e-4)


def test_a_quantized_base_is_served_with_its_adapter_beside_it(quantized, base, write_adapter):
    adapter = write_adapter(base)
    _rename_base(adapter, quantized)

    answer = greedy(resolved(quantized, adapter))

    plain = AutoModelForCausalLM.from_pretrained(quantized, dtype=torch.float32)
    check_against_peft(answer, plain, adapter)


@pytest.mark.parametrize("serve", ["adapter", "merged"])
def test_a_base_that_is_unpacked_is_served_in_either_form(base, write_adapter, tmp_path, serve):
    packed = pack(Path(shutil.copytree(base, tmp_path / "packed")), "fp8")
    adapter = write_adapter(base)
    _rename_base(adapter, packed)

    answer = greedy(resolved(packed, adapter, serve=serve))

    check_against_peft(answer, unpacked(packed), adapter)


def test_an_adapter_of_qlora_is_served_beside_the_base_that_it_was_trained_beside(
    base, write_adapter
):
    adapter = write_adapter(base)
    plain = in_four_bits(base, bnb_4bit_use_double_quant=True)

    answer = greedy(resolved(base, adapter, quantize="nf4"))

    check_against_peft(answer, plain, adapter)


def test_a_quantized_base_is_not_merged_into(quantized, base, write_adapter):
    adapter = write_adapter(base)
    _rename_base(adapter, quantized)

    with pytest.raises(
        ConfigError, match=r"--model\.serve adapter", check=has_code("adapter/merge-of-quantized")
    ):
        form(resolved(quantized, adapter, serve="merged"))


def _rename_base(adapter, base):
    config = json.loads((adapter / "adapter_config.json").read_text())
    config["base_model_name_or_path"] = str(base)
    (adapter / "adapter_config.json").write_text(json.dumps(config))
