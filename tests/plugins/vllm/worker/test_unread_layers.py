"""Layers of a tower behind the one whose features are read."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from rlhf_plugin_vllm.worker.unread_layers import UnreadLayers

TOWER = "model.vision_tower.encoder.layers"


def config(chosen):
    return SimpleNamespace(
        vision_feature_layer=chosen, vision_config=SimpleNamespace(num_hidden_layers=24)
    )


@pytest.mark.parametrize(
    ("chosen", "first"),
    [(-2, 23), (-1, 24), (23, 23), ([-2, -5, 7], 23), (0, 0)],
)
def test_the_layers_from_the_deepest_feature_on_are_unread(chosen, first):
    """Of 24 layers; state 0 is before layer 0, so state -2 is behind layer 22, and layer 23 is the first unread one."""
    unread = UnreadLayers(config(chosen))

    found = [layer for layer in range(24) if unread.has(f"{TOWER}.{layer}.mlp.fc1.weight")]

    assert found == list(range(first, 24))


def test_the_norm_behind_all_layers_is_unread():
    assert UnreadLayers(config(-1)).has("model.vision_tower.post_layernorm.bias")


def test_other_parts_and_other_models_are_read():
    unread = UnreadLayers(config(-2))
    assert not unread.has("model.vision_tower.embeddings.patch_embedding.weight")
    assert not unread.has("model.language_model.layers.23.mlp.up_proj.weight")
    assert not UnreadLayers(SimpleNamespace()).has(f"{TOWER}.23.mlp.fc1.weight")
