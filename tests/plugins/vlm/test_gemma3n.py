"""Gemma 3n: its encoder is one of timm's, with statistics that training leaves alone, and tokens have three tables."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tests.plugins.vlm.vlm_material import (
    NEEDS_TIMM,
    Stage,
    moved,
    plan_for,
    policy_spec,
    train_batch,
)
from transformers import AutoConfig, AutoModelForImageTextToText

from rlhf_core import ConfigError
from rlhf_plugin_local.config import TorchBackendConfig
from rlhf_plugin_vlm.config import VlmConfig
from rlhf_plugin_vlm.model import ImageTextModel
from rlhf_testing.errors import has_code
from rlhf_testing.tiny_vision import write_tiny_vision_model

pytestmark = NEEDS_TIMM
PUBLISHED = {
    "architecture": "mobilenetv5_300m_enc",
    "model_args": {"channel_multiplier": 1 / 16, "msfa_output_resolution": 2},
    "hidden_size": 2048,
}
"""The encoder of the published models, a sixteenth as wide."""


@pytest.fixture
def path(tmp_path) -> Path:
    return write_tiny_vision_model(tmp_path / "model", "gemma3n", initializer_range=0.1)


@pytest.fixture
def stage(path, tmp_path, all_plugins) -> Stage:
    media = tmp_path / "run" / "media"
    return Stage(path, media, all_plugins, policy_spec(path, media))


def statistics(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """What batch norms counted."""
    names = ("running_mean", "running_var", "num_batches_tracked")
    return {name: weight for name, weight in weights.items() if name.endswith(names)}


@pytest.mark.parametrize("recompute", [False, True])
def test_statistics_of_the_encoder_stay_as_they_are_to_the_bit(stage, tmp_path, recompute):
    of_base = statistics(load_file(stage.path / "model.safetensors"))
    assert len(of_base) > 20
    config = TorchBackendConfig(device="cpu", gradient_checkpointing=recompute)
    backend = stage.backend(config)
    batch = stage.play(backend, prompts=3, samples=1)

    backend.train_step(train_batch(batch), plan_for(batch))
    backend.export(tmp_path / "out")

    exported = statistics(load_file(tmp_path / "out" / "model.safetensors"))
    torch.testing.assert_close(exported, of_base, atol=0, rtol=0)
    assert not any(module.training for module in backend._lm.model.modules())


@torch.no_grad()
def test_tokens_have_the_embeddings_of_transformers(stage):
    """Each token that the model knows: of the text, of images and of sounds. Those above the text's have the layers'
    embeddings of token 0."""
    model = AutoModelForImageTextToText.from_pretrained(stage.path).eval()
    config, seen = model.config, {}
    text = model.model.language_model
    text.register_forward_pre_hook(lambda _, given, named: seen.update(named), with_kwargs=True)
    ids = torch.arange(config.text_config.vocab_size)
    model(input_ids=ids[None])

    embeddings = stage.family.token_embeddings(model, ids)
    layers = stage.family.token_inputs(model, ids)["per_layer_inputs"]

    torch.testing.assert_close(embeddings, seen["inputs_embeds"][0], atol=1e-6, rtol=0)
    torch.testing.assert_close(layers, seen["per_layer_inputs"], atol=0, rtol=0)
    plain = model.get_input_embeddings()(ids)
    others = (embeddings != plain).any(dim=1).nonzero()[:, 0].tolist()
    assert others == list(range(config.eoi_token_id, config.text_config.vocab_size))
    assert torch.equal(layers[0, config.eoi_token_id :], layers[0, :1].expand(len(others), -1, -1))


@pytest.mark.slow
def test_the_published_encoder_has_the_numbers_of_transformers(stage):
    """Its features have one shape at each size of images, and no batch norm."""
    config = AutoConfig.from_pretrained(stage.path)
    for name, value in PUBLISHED.items():
        setattr(config.vision_config, name, value)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = AutoModelForImageTextToText.from_config(config, dtype=torch.float32)
        for name, parameter in model.named_parameters():
            if name.endswith((".gamma", "correct_output_scale")):  # they start at nothing
                torch.nn.init.normal_(parameter, std=0.2)
    model.save_pretrained(stage.path)
    # A model as large as this is otherwise computed in bfloat16.
    exact = TorchBackendConfig(device="cpu", compute_dtype="float32")
    backend = stage.backend(exact)
    batch = stage.play(backend, prompts=2, samples=1)

    found = backend.logprobs(batch)

    assert batch.num_media.sum() >= 2
    np.testing.assert_allclose(found, batch.rollout_logprobs, atol=1e-4)
    np.testing.assert_allclose(found, stage.own_logprobs(batch), atol=1e-5)
    steps = moved(stage.backend(exact), batch)
    still = [name for name, step in steps.items() if "vision_tower" in name and not step.any()]
    assert still == []
    assert not statistics(steps)


@pytest.mark.parametrize("changed", [{"do_resize": False}, {"size": {"shortest_edge": 64}}])
def test_a_processor_that_leaves_images_as_large_as_they_are_is_refused(path, changed):
    file = path / "preprocessor_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changed))

    with pytest.raises(
        ConfigError,
        match=r"leaves the sizes of images as they are \(do_resize",
        check=has_code("image/unsupported-processor"),
    ):
        ImageTextModel(VlmConfig()).image_tokens(str(path), trust_remote_code=False)
