"""Weights as a model's files have them."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from rlhf_core import ConfigError
from rlhf_testing.errors import has_code
from rlhf_testing.tiny import write_tiny_model
from rlhf_torch.models.weight_files import holds_another_head, stored_weights, weight_files


@pytest.fixture
def sharded(tmp_path):
    whole = write_tiny_model(tmp_path / "whole", hidden_size=16, num_layers=1, num_heads=2)
    model = AutoModelForCausalLM.from_pretrained(whole, dtype=torch.float32)
    model.save_pretrained(tmp_path / "sharded", max_shard_size="10KB")
    return tmp_path / "sharded"


def test_the_files_of_an_index_are_those_that_it_names(sharded):
    (sharded / "value_head.safetensors").write_bytes(b"of something else")

    found = weight_files(str(sharded))

    assert len(found) > 1
    assert found == sorted(sharded.glob("model-*.safetensors"))


def test_one_file_comes_before_an_index_as_in_transformers(sharded):
    save_file({"a": torch.ones(1)}, sharded / "model.safetensors")

    assert weight_files(str(sharded)) == [sharded / "model.safetensors"]


def test_every_tensor_comes_once_and_only_floating_point_ones_are_cast(tmp_path):
    save_file(
        {"a": torch.tensor([1.5, 2.0]), "n": torch.tensor([3])}, tmp_path / "model.safetensors"
    )

    found = list(stored_weights(str(tmp_path), torch.bfloat16))

    assert [(name, tensor.dtype) for name, tensor in found] == [
        ("a", torch.bfloat16),
        ("n", torch.int64),
    ]
    assert torch.equal(found[0][1], torch.tensor([1.5, 2.0], dtype=torch.bfloat16))


def test_a_folder_without_weights_has_no_files_and_is_refused_as_a_source(tmp_path):
    assert weight_files(str(tmp_path)) == []
    with pytest.raises(ConfigError, check=has_code("model/no-weights")):
        list(stored_weights(str(tmp_path), torch.float32))


def test_a_missing_file_of_an_index_is_named(sharded):
    index = json.loads((sharded / "model.safetensors.index.json").read_text())
    lost = sorted(set(index["weight_map"].values()))[-1]
    (sharded / lost).unlink()

    with pytest.raises(ConfigError, match=lost, check=has_code("model/file-missing")):
        weight_files(str(sharded))


@pytest.mark.parametrize("text", ["{", "[]", "{}"])
def test_an_index_that_cannot_be_read_is_refused(tmp_path, text):
    (tmp_path / "model.safetensors.index.json").write_text(text)

    with pytest.raises(
        ConfigError, match=r"index\.json", check=has_code("model/weights-unreadable")
    ):
        weight_files(str(tmp_path))


@pytest.mark.parametrize(
    ("ties", "head", "differs"),
    [
        (True, "other", True),
        (True, "same", False),
        (True, None, False),
        (False, "other", False),
    ],
)
def test_a_head_that_a_config_passes_over_is_found(tmp_path, ties, head, differs):
    folder = write_tiny_model(tmp_path / "m", hidden_size=16, num_layers=1, num_heads=2)
    weights = load_file(folder / "model.safetensors")
    embeddings = weights["model.embed_tokens.weight"]
    if head is not None:
        weights["lm_head.weight"] = embeddings + (head == "other")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": ties}))

    assert holds_another_head(str(folder)) is differs
    assert not holds_another_head(str(tmp_path / "nowhere"))
