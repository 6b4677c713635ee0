"""An adapter on every family of the table in docs/models.md: its update, its export and its merge are PEFT's."""

from pathlib import Path

import pytest
import torch
from peft import PeftModel
from tests.plugins.lora.conftest import base_of, logits_of, own_logits, ref, trained
from tests.plugins.lora.test_training import moved, peft_gradient
from tests.plugins.torch.conftest import make_batch, make_spec
from tests.plugins.torch.models.test_architectures import ACCEPTED, COMMON
from tests.plugins.torch.models.test_shared_keys import FAMILIES as SHARED_KEYS
from transformers import AutoConfig, AutoModelForCausalLM

from rlhf_testing.tiny import tiny_tokenizer
from rlhf_torch.adapters.folder import read_adapter
from rlhf_torch.adapters.merging import merge_adapter


def write_family(folder: Path, family: str) -> Path:
    """A random model of the family, with weights that are large enough for attention to matter."""
    config = AutoConfig.for_model(family, **{**COMMON, **ACCEPTED[family]})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


def plain(folder: Path):
    return AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    ).eval()


def rounding(family: str, expected: dict[str, torch.Tensor]) -> float:
    """1e-6, or what deeper models with experts make of a hundred roundings of 6e-8 each of the largest gradient."""
    largest = max(float(gradient.abs().max()) for gradient in expected.values())
    return max(1e-6, 1e-5 * largest) if family in SHARED_KEYS else 1e-6


@pytest.mark.parametrize("family", ACCEPTED)
def test_update_export_and_merge_are_those_of_peft(start, plain_sgd, tmp_path, family):
    folder, adapter = write_family(tmp_path / "model", family), tmp_path / "adapter"
    backend, batch = (
        start(make_spec(folder, adapter=ref("lora", rank=4), **plain_sgd)),
        make_batch(),
    )
    backend.export(adapter)
    peft = PeftModel.from_pretrained(plain(folder), adapter, is_trainable=True).eval()

    actual = moved(backend, batch)

    expected = peft_gradient(peft, batch)
    assert actual.keys() == expected.keys() == trained(backend).keys()
    assert all(gradient is not None for gradient in expected.values())
    torch.testing.assert_close(actual, expected, atol=rounding(family, expected), rtol=1e-4)
    merged = merge_adapter(plain(folder), str(folder), read_adapter(adapter)).state_dict()
    summed = peft.merge_and_unload().state_dict()
    assert merged.keys() == summed.keys()
    torch.testing.assert_close(merged, summed, atol=0, rtol=0)


MIXTURES = (
    "deepseek_v3",
    "gemma4_text",
    "gpt_oss",
    "mixtral",
    "qwen2_moe",
    "qwen3_5_moe_text",
    "qwen3_moe",
    "qwen3_next",
)
STACKS = ("experts.gate_up_proj", "experts.down_proj")


@pytest.mark.parametrize("family", MIXTURES)
def test_update_export_and_merge_of_stacked_experts_are_those_of_peft(
    start, plain_sgd, tmp_path, family
):
    folder, adapter = write_family(tmp_path / "model", family), tmp_path / "adapter"
    options = {"rank": 4, "target_parameters": STACKS, "serve": "merged"}
    spec = make_spec(folder, adapter=ref("lora", **options), **plain_sgd)
    backend, batch = start(spec), make_batch()
    base = base_of(backend)
    backend.export(adapter)
    peft = PeftModel.from_pretrained(plain(folder), adapter, is_trainable=True).eval()
    torch.testing.assert_close(own_logits(backend), logits_of(peft), atol=2e-5, rtol=1e-4)
    served = dict(backend._model.adapter.merged_weights(backend._lm.model))

    actual = moved(backend, batch)

    expected = peft_gradient(peft, batch)
    assert actual.keys() == expected.keys() == trained(backend).keys()
    assert sum(".experts." in name for name in expected) >= 4
    assert all(gradient is not None for gradient in expected.values())
    torch.testing.assert_close(actual, expected, atol=rounding(family, expected), rtol=1e-4)
    torch.testing.assert_close(base_of(backend), base, atol=0, rtol=0)
    merged = merge_adapter(plain(folder), str(folder), read_adapter(adapter)).state_dict()
    summed = peft.merge_and_unload().state_dict()
    assert served.keys() == merged.keys() == summed.keys()
    torch.testing.assert_close(merged, summed, atol=0, rtol=0)
    # In another order of operations: some roundings of 6e-8 of weights of size 1.
    torch.testing.assert_close(served, merged, atol=1e-6, rtol=1e-6)
