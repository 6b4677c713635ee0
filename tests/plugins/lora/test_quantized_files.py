"""Adapters on a base whose files hold weights in MXFP4 or FP8: lora computes beside what they unpack to."""

import pytest
import torch
from peft import PeftModel
from tests.plugins.lora.conftest import ref, trained
from tests.plugins.lora.test_training import moved, peft_gradient
from tests.plugins.torch.conftest import make_batch, make_spec
from tests.quantized_folders import unpacked, write_quantized

from rlhf_core import ConfigError
from rlhf_testing.errors import has_code

FAMILIES = ("gpt_oss", "qwen3")


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("quantized")
    return {family: write_quantized(root / family, family) for family in FAMILIES}


@pytest.mark.parametrize("family", FAMILIES)
def test_gradients_are_those_of_peft_beside_the_unpacked_base(
    folders, start, plain_sgd, tmp_path, family
):
    spec = make_spec(folders[family], adapter=ref("lora", rank=4), **plain_sgd)
    backend, batch = start(spec), make_batch()
    backend.export(tmp_path)
    peft = PeftModel.from_pretrained(unpacked(folders[family]), tmp_path, is_trainable=True)

    actual = moved(backend, batch)

    expected = peft_gradient(peft.eval(), batch)
    assert actual.keys() == expected.keys() == trained(backend).keys()
    torch.testing.assert_close(actual, expected, atol=1e-6, rtol=1e-4)
    assert all(float(gradient.abs().max()) > 1e-6 for gradient in expected.values())
    base = {
        name: weight
        for name, weight in backend._model.lm.model.named_parameters()
        if "experts" in name
    }
    assert {weight.dtype for weight in base.values()} <= {torch.float32}


def test_a_base_in_four_bits_is_not_made_of_packed_files(folders, start, plain_sgd):
    pytest.importorskip("bitsandbytes")
    spec = make_spec(folders["qwen3"], adapter=ref("qlora"), **plain_sgd)

    with pytest.raises(
        ConfigError, match=r"fp8.*--actor\.adapter lora", check=has_code("model/quantized")
    ):
        start(spec)
