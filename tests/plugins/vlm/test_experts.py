"""Mixtures of experts that see: their routers are followed and balanced at tokens of images as at those of text."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.plugins.vlm.vlm_material import Stage, own_inputs, plan_for, policy_spec, train_batch
from transformers import AutoModelForImageTextToText
from transformers.models.glm4v_moe.modeling_glm4v_moe import load_balancing_loss_func

from rlhf_core.contracts import RoleSpec
from rlhf_testing.tiny_vision import write_tiny_vision_model
from rlhf_torch.experts.choices import ExpertChoices


@pytest.fixture
def open_stage(tmp_path, all_plugins):
    path = write_tiny_vision_model(tmp_path / "model", "glm4v_moe", initializer_range=0.2)
    media = tmp_path / "run" / "media"
    spec = policy_spec(path, media)

    def open_with(**changes) -> Stage:
        changed: RoleSpec = replace(spec, **changes)
        return Stage(path, media, all_plugins, changed)

    return open_with


def test_a_trainer_that_follows_the_engine_has_its_logprobs(open_stage, monkeypatch):
    """The engine is made to choose the worst experts, so that the trainer's own are others everywhere."""
    stage = open_stage(replays_routes=True)
    plain = ExpertChoices.answer

    def worst(self, layer, scores, own):
        if self._taken is None:
            return plain(self, layer, scores, own)
        width = self.top_k or own.indices.shape[-1]
        return plain(self, layer, scores, torch.topk(scores, width, largest=False))

    monkeypatch.setattr(ExpertChoices, "answer", worst)
    batch = stage.play(stage.backend(), prompts=3)

    followed = stage.backend().logprobs(batch)

    assert batch.num_media.sum() >= 4
    np.testing.assert_allclose(followed, batch.rollout_logprobs, atol=1e-5)
    alone = stage.backend(replays_routes=False).logprobs(batch)
    assert np.abs(alone - batch.rollout_logprobs).max() > 0.01


def test_the_balancing_loss_is_that_of_transformers(open_stage):
    """All rows are one micro-batch, and tokens of images count."""
    stage = open_stage(router_aux_loss=0.5)
    backend = stage.backend()
    batch = stage.play(backend, prompts=3)
    model = AutoModelForImageTextToText.from_pretrained(stage.path).eval()
    with torch.no_grad():
        rows = [
            model(**own_inputs(stage, batch, row), output_router_logits=True).router_logits
            for row in range(len(batch))
        ]

    metrics = backend.train_step(train_batch(batch), plan_for(batch)).metrics

    layers = tuple(torch.cat(layer) for layer in zip(*rows, strict=True))
    expected = float(load_balancing_loss_func(layers, 4, 2))
    assert len(layers) == 1  # the first layer is dense
    assert metrics["policy/moe/balancing_loss"].value() == pytest.approx(expected, rel=1e-5)
