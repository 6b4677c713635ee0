"""Weights from files: as a module, and in buckets."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from transformers import AutoModelForCausalLM

from rlhf_core import ConfigError
from rlhf_plugin_inference.serving.model_source import ModelSource, dtype_of
from rlhf_plugin_inference.serving.options import ModelToServe
from rlhf_testing.errors import has_code


def buckets(path, dtype="float32", **options):
    source = ModelSource(ModelToServe(path=str(path), **options), dtype)
    return {name: tensor for bucket in source.buckets() for name, tensor in bucket.items()}


def plain(path):
    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).state_dict()


@pytest.mark.parametrize("sharded", [False, True])
def test_buckets_are_the_files_tensors_in_the_engines_dtype(untied_base, tmp_path, sharded):
    if sharded:
        model = AutoModelForCausalLM.from_pretrained(untied_base, dtype=torch.float32)
        model.save_pretrained(tmp_path, max_shard_size="10KB")
        assert len(list(tmp_path.glob("*.safetensors"))) > 1
    path = tmp_path if sharded else untied_base

    found, expected = buckets(path, "bfloat16"), plain(untied_base)

    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor.bfloat16()), name


def test_the_module_computes_what_the_model_computes(base):
    module = ModelSource(ModelToServe(path=str(base)), "float32").module()

    state = module.model.state_dict()
    assert all(torch.equal(state[name], tensor) for name, tensor in plain(base).items())
    assert not any(parameter.requires_grad for parameter in module.parameters())


def test_an_adapters_buckets_are_the_merged_weights_rounded_once(base, write_adapter):
    pytest.importorskip("peft")
    adapter = str(write_adapter(base))

    exact = buckets(base, adapter=adapter)
    rounded = buckets(base, "bfloat16", adapter=adapter)

    assert exact.keys() == plain(base).keys()
    assert all(torch.equal(rounded[name], exact[name].bfloat16()) for name in exact)
    changed = {name for name, tensor in plain(base).items() if not torch.equal(tensor, exact[name])}
    assert {name.split(".")[-2] for name in changed} == {"q_proj", "down_proj"}


def test_an_adapter_that_unties_head_and_embedding_cannot_come_in_buckets(base, write_adapter):
    pytest.importorskip("peft")
    adapter = write_adapter(base, target_modules=["lm_head"])

    with pytest.raises(ConfigError, check=has_code("adapter/changes-head")):
        buckets(base, adapter=str(adapter))


def test_an_adapter_of_another_base_is_refused(base, untied_base, write_adapter):
    adapter = write_adapter(base)

    with pytest.raises(
        ConfigError,
        match=f"was trained on {base}.* rlhf merge --same-base",
        check=has_code("adapter/other-base"),
    ):
        ModelSource(ModelToServe(path=str(untied_base), adapter=str(adapter)), "float32").module()


def test_weights_that_cannot_be_read_are_refused(base, tmp_path):
    shutil.copytree(base, tmp_path / "model")
    (tmp_path / "model" / "model.safetensors").write_bytes(b"nothing")

    with pytest.raises(ConfigError, check=has_code("model/weights-unreadable")):
        buckets(tmp_path / "model")


@pytest.mark.parametrize(
    ("stored", "wanted", "expected"),
    [
        ("bfloat16", "auto", "bfloat16"),
        ("float16", "auto", "float32"),
        ("float32", "auto", "float32"),
        ("bfloat16", "float32", "float32"),
    ],
)
def test_auto_takes_the_files_dtype_and_loses_no_bit(base, tmp_path, stored, wanted, expected):
    config = json.loads((base / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"dtype": stored}))

    assert dtype_of(ModelToServe(path=str(tmp_path), dtype=wanted)) == expected
