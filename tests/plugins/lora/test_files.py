"""Checkpoints and exports: what is trained, to the bit, and PEFT folders that other tools load to the same outputs."""

import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from tests.deadlines import HANG_S
from tests.plugins.lora.conftest import (
    ADAPTERS,
    logits_of,
    own_logits,
    plain_model,
    trained,
)
from tests.plugins.torch.conftest import make_batch
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from rlhf_core import CheckpointError
from rlhf_core.contracts import ScheduleSpec, ValueObjective
from rlhf_testing.errors import has_code
from rlhf_testing.tiny import FAMILIES, write_tiny_model

SCHEDULE = ScheduleSpec(factors=(1 / 3, 2 / 3, 1.0, 0.93, 0.75, 0.5, 0.25, 0.07, 0.0))


@pytest.mark.parametrize("adapter", ADAPTERS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_restored_run_goes_on_to_the_bit(start, spec_of, train, tmp_path, adapter, dtype):
    options = {"dropout": 0.3, "modules_to_save": ["model.norm"]}
    spec = spec_of(adapter, dtype=dtype, schedule=SCHEDULE, ema_decay=0.9, options=options)
    straight = start(spec)
    train(straight, range(3))
    straight.save(tmp_path)
    expected = train(straight, range(3, 6))
    resumed = start(spec, fresh=True)

    resumed.load(tmp_path)

    assert train(resumed, range(3, 6)) == expected
    torch.testing.assert_close(trained(resumed), trained(straight), atol=0, rtol=0)
    torch.testing.assert_close(resumed._updater.ema, straight._updater.ema, atol=0, rtol=0)


def test_a_critic_is_restored_with_its_head_and_adapter(start, spec_of, train, tmp_path):
    spec = spec_of(role="critic", head="value", objective=ValueObjective())
    straight = start(spec)
    train(straight)
    straight.save(tmp_path)
    rows = make_batch().trajectories
    resumed = start(spec, fresh=True)

    resumed.load(tmp_path)

    np.testing.assert_array_equal(resumed.values(rows), straight.values(rows))


def test_a_checkpoint_holds_what_is_trained_and_not_the_base(start, spec_of, train, tmp_path):
    backend = start(spec_of(dtype="bfloat16"))
    train(backend)

    backend.save(tmp_path)

    names = set(trained(backend))
    assert set(load_file(tmp_path / "model.safetensors")) == names
    assert set(load_file(tmp_path / "float32_copies.safetensors")) == names


@pytest.mark.parametrize("other", [{"options": {"rank": 4}}, {"options": {"target": ["q_proj"]}}])
def test_the_checkpoint_of_another_adapter_is_refused(start, spec_of, tmp_path, other):
    start(spec_of()).save(tmp_path)

    with pytest.raises(CheckpointError, check=has_code("checkpoint/other-tensors")):
        start(spec_of(**other)).load(tmp_path)


@pytest.mark.parametrize("adapter", ["lora", "dora"])
@pytest.mark.parametrize("family", FAMILIES)
def test_an_export_is_a_peft_folder(start, spec_of, models, train, tmp_path, family, adapter):
    backend = start(spec_of(adapter, family, options={"modules_to_save": ["model.norm"]}))
    train(backend)

    backend.export(tmp_path)

    expected = own_logits(backend)
    by_peft = PeftModel.from_pretrained(plain_model(models[family]), tmp_path)
    torch.testing.assert_close(logits_of(by_peft), expected, atol=1e-5, rtol=1e-4)
    by_transformers = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    torch.testing.assert_close(logits_of(by_transformers), expected, atol=1e-5, rtol=1e-4)
    assert sorted(path.name for path in tmp_path.glob("*.safetensors")) == [
        "adapter_model.safetensors"
    ]
    before = AutoTokenizer.from_pretrained(models[family])
    assert AutoTokenizer.from_pretrained(tmp_path).encode("ab c?") == before.encode("ab c?")


def test_an_export_has_all_ends_of_turns(start, spec_of, models, tmp_path):
    """Neither PEFT nor Transformers reads them beside an adapter; who generates with it gives them to the model."""
    base = models["qwen3"]
    tokenizer = AutoTokenizer.from_pretrained(base)
    other = next(token for token in (4, 5, 6) if token != tokenizer.eos_token_id)
    tokenizer.chat_template = (
        "{% for m in messages %}{{ m['content'] }}" + tokenizer.decode([other]) + "{% endfor %}"
        "{% if add_generation_prompt %}>{% endif %}"
    )
    tokenizer.add_special_tokens({"additional_special_tokens": [tokenizer.decode([other])]})
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    spec = replace(spec_of(), tokenizer_path=str(tmp_path / "tokenizer"), row_ends=(other,))
    backend = start(spec, fresh=True)
    backend.module().model.generation_config.temperature = 0.6  # without do_sample

    backend.export(tmp_path / "out")

    ends = GenerationConfig.from_pretrained(tmp_path / "out").eos_token_id
    assert set(ends) == {tokenizer.eos_token_id, other}
    loaded = PeftModel.from_pretrained(plain_model(base), tmp_path / "out")
    loaded.generation_config = GenerationConfig.from_pretrained(tmp_path / "out")
    ids = torch.tensor([[3, 3, 3]])
    wanted = torch.zeros(loaded.config.vocab_size)
    wanted[other] = 1e4
    with torch.no_grad():
        answer = loaded.generate(
            ids, max_new_tokens=5, do_sample=False, logits_processor=[lambda _, x: x + wanted]
        )
    assert answer[0, 3:].tolist() == [other]


def test_an_export_names_its_base_by_a_path_that_holds_anywhere(
    start, spec_of, models, tmp_path, monkeypatch
):
    monkeypatch.chdir(models["qwen3"].parent)
    backend = start(spec_of(model_path="qwen3"))

    backend.export(tmp_path)

    settings = json.loads((tmp_path / "adapter_config.json").read_text())
    assert settings["base_model_name_or_path"] == str(models["qwen3"])
    assert (settings["r"], settings["lora_alpha"], settings["task_type"]) == (16, 32, "CAUSAL_LM")


def test_heads_and_embeddings_are_exported(start, spec_of, tmp_path, train):
    path = write_tiny_model(tmp_path / "base", "llama", tied=False, initializer_range=0.2)
    options = {"target": ["embed_tokens", "q_proj"], "modules_to_save": ["lm_head"]}
    backend = start(spec_of(options=options, model_path=str(path)))
    train(backend)

    backend.export(tmp_path / "out")

    loaded = PeftModel.from_pretrained(plain_model(path), tmp_path / "out")
    torch.testing.assert_close(logits_of(loaded), own_logits(backend), atol=1e-5, rtol=1e-4)


def test_a_quantized_policy_is_exported_for_its_own_base(start, spec_of, train, tmp_path):
    from transformers import BitsAndBytesConfig

    from rlhf_plugin_lora.quantized import compute_in_the_dtype_of_inputs

    backend = start(spec_of("qlora"))
    train(backend)

    backend.export(tmp_path)

    quantized = AutoModelForCausalLM.from_pretrained(
        backend._spec.model_path,
        dtype=torch.float32,
        quantization_config=BitsAndBytesConfig(
            load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True
        ),
    )
    compute_in_the_dtype_of_inputs(quantized)
    loaded = PeftModel.from_pretrained(quantized, tmp_path)
    torch.testing.assert_close(logits_of(loaded), own_logits(backend), atol=1e-4, rtol=1e-4)


def test_the_average_is_exported_and_the_weights_come_back(start, spec_of, train, tmp_path):
    backend = start(spec_of(ema_decay=0.9))
    train(backend)
    digest = backend.checksum()

    backend.export(tmp_path, ema=True)

    found = load_file(tmp_path / "adapter_model.safetensors")
    for name, average in backend._updater.ema.items():
        key = "base_model.model." + name.replace(".default.", ".")
        torch.testing.assert_close(found[key], average, atol=0, rtol=0)
    assert backend.checksum() == digest


def test_importing_peft_says_nothing_of_kernels_that_are_not_used():
    """On CPUs with bfloat16 instructions bitsandbytes warns of one at each import."""
    done = subprocess.run(
        [sys.executable, "-c", "import rlhf_plugin_lora.adapter"],
        capture_output=True,
        text=True,
        timeout=HANG_S,
    )

    assert done.returncode == 0, done.stderr
    assert "gemm_4bit" not in done.stdout + done.stderr
