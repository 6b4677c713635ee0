"""Factors of stacked experts: PEFT's own in updates, files and merged weights, and refused where they cannot be."""

import pytest
import torch
from peft import PeftModel
from tests.plugins.lora.conftest import base_of, logits_of, own_logits, ref, trained
from tests.plugins.lora.test_every_family import plain, rounding, write_family
from tests.plugins.lora.test_training import moved, peft_gradient
from tests.plugins.torch.conftest import make_batch, make_spec

from rlhf_torch.adapters.folder import read_adapter
from rlhf_torch.adapters.merging import merge_adapter

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
STACKS = ["experts.gate_up_proj", "experts.down_proj"]


@pytest.mark.parametrize("family", MIXTURES)
def test_update_export_and_merge_are_those_of_peft(start, plain_sgd, tmp_path, family):
    folder, adapter = write_family(tmp_path / "model", family), tmp_path / "adapter"
    options = {"rank": 4, "target_parameters": STACKS}
    backend, batch = (
        start(make_spec(folder, adapter=ref("lora", **options), **plain_sgd)),
        make_batch(),
    )
    base = base_of(backend)
    backend.export(adapter)
    peft = PeftModel.from_pretrained(plain(folder), adapter, is_trainable=True).eval()

    torch.testing.assert_close(own_logits(backend), logits_of(peft), atol=2e-5, rtol=1e-4)
    merged = merge_adapter(plain(folder), str(folder), read_adapter(adapter)).state_dict()
    served = dict(backend._model.adapter.merged_weights(backend._model.lm.model))
    assert served.keys() == merged.keys()
    torch.testing.assert_close(served, merged, atol=1e-6, rtol=1e-6)

    actual = moved(backend, batch)

    expected = peft_gradient(peft, batch)
    assert actual.keys() == expected.keys() == trained(backend).keys()
    assert all(gradient is not None for gradient in expected.values())
    assert any("experts.base_layer.lora_A" in name for name in expected)
    torch.testing.assert_close(actual, expected, atol=rounding(family, expected), rtol=1e-4)
    torch.testing.assert_close(base_of(backend), base, atol=0, rtol=0)
    summed = peft.merge_and_unload().state_dict()
    torch.testing.assert_close(merged, summed, atol=0, rtol=0)
