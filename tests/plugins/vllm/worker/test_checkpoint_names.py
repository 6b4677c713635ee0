"""The names and parts by which vLLM loads a trainer's weights are those that Transformers writes, for every family."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tests.plugins.vlm.vlm_material import families
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

from rlhf_plugin_vllm.worker.checkpoint_names import CheckpointNames
from rlhf_testing.tiny_text_families import TEXT_FAMILIES, write_tiny_text_model
from rlhf_testing.tiny_vision import MORE_VISION_FAMILIES, VISION_FAMILIES, write_tiny_vision_model

SEEING = (*VISION_FAMILIES, *MORE_VISION_FAMILIES)


def written(folder: Path, family: str):
    """A tiny model as Transformers reads it, and its files."""
    if family in SEEING:
        write_tiny_vision_model(folder, family)
        model = AutoModelForImageTextToText.from_pretrained(folder)
    else:
        write_tiny_text_model(folder, family)
        model = AutoModelForCausalLM.from_pretrained(folder)
    return model, load_file(folder / "model.safetensors")


@pytest.mark.parametrize("family", [*TEXT_FAMILIES, *families(SEEING)])
def test_what_vllm_loads_is_what_a_published_folder_has(tmp_path, family):
    model, files = written(tmp_path, family)
    names = CheckpointNames(AutoConfig.from_pretrained(tmp_path))
    weights = model.state_dict()  # what a trainer sends

    found = {}
    for name, weight in weights.items():  # one at a time, as buckets may have them
        parts = names.of({name: weight})
        own = weight.untyped_storage().data_ptr()
        assert all(part.untyped_storage().data_ptr() == own for part in parts.values())
        assert sum(part.numel() for part in parts.values()) == weight.numel()
        found |= parts

    assert set(found) - set(files) == names.tied
    assert set(files) <= set(found)
    assert all(torch.equal(found[name], weight) for name, weight in files.items())


@pytest.mark.parametrize("name", ["OwnModel", "MixtralForCausalLM"])
def test_code_that_comes_with_a_model_keeps_its_names(name):
    """Also that of a class with a name that Transformers has, and a configuration of its own."""
    config = AutoConfig.for_model("llama")
    config.architectures = [name]
    weights = {"model.layers.0.mlp.experts.gate_up_proj": torch.zeros(2, 4, 3)}

    assert list(CheckpointNames(config).of(weights)) == list(weights)


def test_experts_of_a_stack_are_named_one_by_one(tmp_path):
    """By hand: the first half of an expert's rows is its gate, w1; the second is up, w3."""
    write_tiny_text_model(tmp_path, "mixtral")
    names = CheckpointNames(AutoConfig.from_pretrained(tmp_path))
    stack = torch.arange(4 * 128 * 32, dtype=torch.float32).view(4, 128, 32)

    parts = names.of({"model.layers.1.mlp.experts.gate_up_proj": stack})

    own = "model.layers.1.block_sparse_moe.experts"
    assert set(parts) == {f"{own}.{one}.{half}.weight" for one in range(4) for half in ("w1", "w3")}
    assert torch.equal(parts[f"{own}.2.w1.weight"], stack[2, :64])
    assert torch.equal(parts[f"{own}.2.w3.weight"], stack[2, 64:])
