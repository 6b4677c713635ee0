"""``rlhf merge``: what it writes computes what PEFT computes, and what cannot be merged is refused by name."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import warnings

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
)

from rlhf_cli.main import main
from rlhf_core import long_work
from rlhf_testing.tiny import write_tiny_model

pytest.importorskip("peft")
from tests.deadlines import HANG_S

TOKENS = torch.tensor([[5, 9, 12, 40, 41, 7]])
KINDS = {
    "lora": {},
    "every_projection": {"target_modules": "all-linear"},
    "dora": {"use_dora": True},
    "rank_stabilized": {"use_rslora": True},
    "other_ranks": {"rank_pattern": {"down_proj": 2}, "alpha_pattern": {"q_proj": 1}},
    "embedding": {"target_modules": ["q_proj", "embed_tokens"]},
    "head": {"target_modules": ["q_proj", "lm_head"]},
    "saved_head": {"modules_to_save": ["lm_head"]},
    "saved_both": {"modules_to_save": ["lm_head", "embed_tokens"]},
    "saved_norm": {"modules_to_save": ["norm"]},
    "parameter": {"target_parameters": ["mlp.down_proj.weight"], "target_modules": ["q_proj"]},
}


def merge(*words, code=0):
    assert main(["merge", *map(str, words)]) == code


@torch.inference_mode()
def outputs_of(model):
    return model(input_ids=TOKENS).logits


def with_peft(base, adapter, kind=AutoModelForCausalLM, **options):
    from peft import PeftModel

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = kind.from_pretrained(base, dtype=torch.float32, **options)
        return PeftModel.from_pretrained(model, adapter).eval()


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_merged_model_computes_what_peft_computes(
    base, untied_base, write_adapter, tmp_path, kind, tied
):
    folder = base if tied else untied_base
    adapter = write_adapter(folder, **KINDS[kind])

    merge(folder, adapter, tmp_path / "out")

    expected = outputs_of(with_peft(folder, adapter))
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32)
    torch.testing.assert_close(outputs_of(merged), expected, atol=1e-5, rtol=1e-5)
    plain = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    assert (expected - outputs_of(plain)).abs().max() > 0.1, "the adapter changes the outputs"


def test_a_weight_is_the_base_plus_scaled_factors_rounded_once(base, write_adapter, tmp_path):
    """The base is bfloat16: W + (8 / 4) B A in float32, and one rounding."""
    rounded = tmp_path / "rounded"
    AutoModelForCausalLM.from_pretrained(base, dtype=torch.bfloat16).save_pretrained(rounded)
    shutil.copy(base / "tokenizer.json", rounded)
    shutil.copy(base / "tokenizer_config.json", rounded)
    adapter = write_adapter(rounded)
    name = "model.layers.1.mlp.down_proj"

    merge(rounded, adapter, tmp_path / "out")

    before = load_file(rounded / "model.safetensors")[f"{name}.weight"]
    factors = load_file(adapter / "adapter_model.safetensors")
    a, b = (factors[f"base_model.model.{name}.lora_{x}.weight"] for x in "AB")
    after = load_file(tmp_path / "out" / "model.safetensors")
    assert after[f"{name}.weight"].dtype == torch.bfloat16
    expected = (before.float() + 2.0 * (b @ a)).bfloat16()
    assert torch.equal(after[f"{name}.weight"], expected)
    untouched = "model.layers.1.mlp.up_proj.weight"
    assert torch.equal(after[untouched], load_file(rounded / "model.safetensors")[untouched])


def test_each_part_says_what_takes_long(base, write_adapter, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(long_work, "FIRST_S", 0.0)
    adapter = write_adapter(base)

    merge(base, adapter, tmp_path / "out")

    assert [line for line in caplog.messages if line.endswith(": 0 s so far")] == [
        f"reading the weights of {base}: 0 s so far",
        f"merging {adapter} into {base}: 0 s so far",
        f"writing the model to {tmp_path / 'out'}: 0 s so far",
    ]


def test_tokenizer_template_and_generation_config_come_along(base, write_adapter, tmp_path):
    own = tmp_path / "own"
    shutil.copytree(base, own)
    # Transformers reads a temperature without do_sample, and refuses to write one.
    listed = {"eos_token_id": [2, 3], "temperature": 0.6}
    (own / "generation_config.json").write_text(json.dumps(listed))

    merge(own, write_adapter(own), tmp_path / "out")

    tokenizer, before = (AutoTokenizer.from_pretrained(f) for f in (tmp_path / "out", own))
    assert tokenizer.chat_template == before.chat_template
    assert tokenizer("a b")["input_ids"] == before("a b")["input_ids"]
    written = json.loads((tmp_path / "out" / "generation_config.json").read_text())
    assert {name: written[name] for name in listed} == listed


def test_the_adapters_own_tokenizer_is_preferred(base, write_adapter, tmp_path):
    adapter = write_adapter(base)
    tokenizer = AutoTokenizer.from_pretrained(base)
    tokenizer.chat_template = "{{ messages[0]['content'] }}"
    tokenizer.save_pretrained(adapter)

    merge(base, adapter, tmp_path / "out")

    written = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert written.chat_template == "{{ messages[0]['content'] }}"


def test_a_value_head_beside_the_adapter_is_copied(base, write_adapter, tmp_path):
    adapter = write_adapter(base)
    head = {"weight": torch.ones(1, 16), "bias": torch.zeros(1)}
    save_file(head, adapter / "value_head.safetensors")

    merge(base, adapter, tmp_path / "out")

    assert torch.equal(
        load_file(tmp_path / "out" / "value_head.safetensors")["weight"], head["weight"]
    )


def test_a_reward_models_adapter_gives_a_classifier_with_its_head(base, write_adapter, tmp_path):
    """The base is a language model: the head is the adapter's alone."""
    adapter = write_adapter(base, labels=1)

    merge(base, adapter, tmp_path / "out")

    kind = AutoModelForSequenceClassification
    expected = outputs_of(with_peft(base, adapter, kind, num_labels=1, pad_token_id=0))
    merged = kind.from_pretrained(tmp_path / "out", dtype=torch.float32)
    assert merged.config.num_labels == 1
    assert merged.config.pad_token_id == 0
    torch.testing.assert_close(outputs_of(merged), expected, atol=1e-5, rtol=1e-5)


def refused(capsys, *words):
    merge(*words, code=2)
    *_, line = capsys.readouterr().err.strip().splitlines()  # before it, the fixture's own loading
    assert line.startswith("error: ")
    return line


def test_an_adapter_of_another_base_is_refused_unless_told(
    base, untied_base, write_adapter, tmp_path, capsys
):
    adapter = write_adapter(base)

    line = refused(capsys, untied_base, adapter, tmp_path / "out")

    assert f"was trained on {base}, and not on {untied_base}" in line
    assert not (tmp_path / "out").exists()
    merge(untied_base, adapter, tmp_path / "out", "--same-base")
    assert (tmp_path / "out" / "config.json").is_file()


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (
            {"hidden_size": 32},
            "q_proj has the shape (32, 32) in the base; the adapter's factors make (16, 16)",
        ),
        ({"num_layers": 1}, "the base has no module model.layers.1."),
    ],
)
def test_a_base_of_another_size_is_refused_by_the_modules_name(
    base, write_adapter, tmp_path, capsys, size, text
):
    other = write_tiny_model(
        tmp_path / "elsewhere" / "base", **{"hidden_size": 16, "num_heads": 2} | size
    )
    adapter = write_adapter(base, target_modules=["q_proj"])

    assert text in refused(capsys, other, adapter, tmp_path / "out", "--same-base")


def test_a_saved_module_of_another_shape_is_refused_by_name(base, write_adapter, tmp_path, capsys):
    adapter = write_adapter(base, modules_to_save=["norm"])
    weights = load_file(adapter / "adapter_model.safetensors")
    weights["base_model.model.model.norm.weight"] = torch.ones(8)
    save_file(weights, adapter / "adapter_model.safetensors")

    line = refused(capsys, base, adapter, tmp_path / "out")

    assert "model.norm.weight has the shape (16,) in the base; the adapter's has (8,)" in line


def test_factors_of_another_rank_than_the_config_says_are_refused(
    base, write_adapter, tmp_path, capsys
):
    adapter = write_adapter(base)
    config = json.loads((adapter / "adapter_config.json").read_text())
    (adapter / "adapter_config.json").write_text(json.dumps(config | {"r": 8}))

    line = refused(capsys, base, adapter, tmp_path / "out")

    assert "with the rank r = 8 of its config" in line
    assert "factors A (4, " in line


def test_a_quantized_base_is_refused(base, write_adapter, tmp_path, capsys):
    quantized = tmp_path / "quantized"
    shutil.copytree(base, quantized)
    config = json.loads((quantized / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "bitsandbytes", "load_in_4bit": True}
    (quantized / "config.json").write_text(json.dumps(config))

    line = refused(capsys, quantized, write_adapter(base), tmp_path / "out", "--same-base")

    assert "its weights are quantized" in line


@pytest.mark.parametrize("what", ["a file", "a folder with a file"])
def test_an_output_that_is_there_is_refused(base, write_adapter, tmp_path, capsys, what):
    out = tmp_path / "out"
    if what == "a file":
        out.write_text("mine")
    else:
        out.mkdir()
        (out / "mine").write_text("mine")

    assert "expected a new or an empty folder" in refused(capsys, base, write_adapter(base), out)


def test_what_a_killed_merge_left_does_not_get_into_the_result(base, write_adapter, tmp_path):
    (tmp_path / "out.tmp").mkdir()
    (tmp_path / "out.tmp" / "half.safetensors").write_text("half")

    merge(base, write_adapter(base), tmp_path / "out")

    assert not (tmp_path / "out.tmp").exists()
    assert not (tmp_path / "out" / "half.safetensors").exists()


def test_an_empty_output_folder_is_used(base, write_adapter, tmp_path):
    (tmp_path / "out").mkdir()

    merge(base, write_adapter(base), tmp_path / "out")

    assert (tmp_path / "out" / "model.safetensors").is_file()
    assert [path.name for path in tmp_path.glob("out*")] == ["out"]


@pytest.mark.parametrize(
    ("damage", "text"),
    [
        (lambda folder: (folder / "adapter_config.json").unlink(), "it has no adapter_config.json"),
        (
            lambda folder: (folder / "adapter_model.safetensors").rename(
                folder / "adapter_model.bin"
            ),
            "adapter_model.bin is a pickle",
        ),
        (lambda folder: (folder / "adapter_config.json").write_text("{"), "cannot be read"),
        (lambda folder: (folder / "adapter_config.json").write_text("{}"), "expected a peft_type"),
        (
            lambda folder: os.truncate(folder / "adapter_model.safetensors", 100),
            "cannot be read",
        ),
    ],
)
def test_a_damaged_adapter_is_refused(base, write_adapter, tmp_path, capsys, damage, text):
    adapter = write_adapter(base)
    damage(adapter)

    assert text in refused(capsys, base, adapter, tmp_path / "out")


def test_factors_that_are_not_finite_are_refused(base, write_adapter, tmp_path, capsys):
    adapter = write_adapter(base)
    weights = load_file(adapter / "adapter_model.safetensors")
    weights["base_model.model.model.layers.0.mlp.down_proj.lora_B.weight"].fill_(float("nan"))
    save_file(weights, adapter / "adapter_model.safetensors")

    assert "cannot be merged" in refused(capsys, base, adapter, tmp_path / "out")


def test_help_imports_no_torch():
    code = (
        "import sys; from rlhf_cli.main import main; main(['merge', '--help']);"
        "print('torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=HANG_S, check=True
    )

    assert "--same-base" in done.stdout
    assert done.stdout.rstrip().endswith("False")
