"""Families whose other tests are in the full matrix: what is sampled has the numbers of Transformers, and sees."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from tests.images import noisy
from tests.plugins.vlm.vlm_material import Stage, policy_spec

from rlhf_core.batch.media_columns import media_rows, media_spans
from rlhf_core.contracts import TrajectoryColumns
from rlhf_core.media import MediaDesk, MediaOptions, MediaSpan, decode
from rlhf_plugin_vlm.config import VlmConfig
from rlhf_plugin_vlm.model import ImageTextModel
from rlhf_testing.tiny_vision import MORE_VISION_FAMILIES, write_tiny_vision_model


def shuffled(stage: Stage, batch: TrajectoryColumns) -> TrajectoryColumns:
    """The batch with the pixels of each image in another order."""
    desk = MediaDesk(MediaOptions(folder=str(stage.media)))
    spans = []
    for span in media_spans(batch.media):
        pixels = np.asarray(decode(desk.store.read(span.image))).reshape(-1, 3)
        mixed = pixels[np.random.default_rng(0).permutation(len(pixels))]
        image = Image.frombytes("RGB", (span.image.width, span.image.height), mixed.tobytes())
        taken = desk.take(image, stage.media)
        spans.append(MediaSpan(start=span.start, length=span.length, image=taken))
    return replace(batch, media=media_rows(spans))


@pytest.mark.parametrize("family", MORE_VISION_FAMILIES)
def test_what_is_sampled_has_the_numbers_of_transformers_and_sees(tmp_path, all_plugins, family):
    path = write_tiny_vision_model(tmp_path / "model", family, initializer_range=0.1)
    media = Path(tmp_path / "run" / "media")
    stage = Stage(path, media, all_plugins, policy_spec(path, media))
    backend = stage.backend()

    batch = stage.play(backend, prompts=2, samples=1)

    logprobs = backend.logprobs(batch)
    np.testing.assert_allclose(logprobs, batch.rollout_logprobs, atol=1e-4)
    np.testing.assert_allclose(logprobs, stage.own_logprobs(batch), atol=1e-5)
    assert batch.num_media.sum() >= 2
    assert np.abs(backend.logprobs(shuffled(stage, batch)) - logprobs).max() > 1e-4
    assert torch.isfinite(torch.from_numpy(logprobs)).all()


def test_the_only_feature_of_a_call_is_that_of_a_call_with_others(tmp_path):
    """Transformers cannot compute one feature of Mistral 3 alone."""
    path = write_tiny_vision_model(tmp_path / "model", "mistral3", initializer_range=0.1)
    family = ImageTextModel(VlmConfig()).family(str(path), trust_remote_code=False)
    model, _ = family.load(dtype=torch.float32, output_loading_info=True)
    pictures = [family.picture(noisy(*size)) for size in ((3, 4), (16, 9))]

    with torch.no_grad():
        alone, together = (family.features(model, some) for some in (pictures[:1], pictures))

    assert pictures[0].num_features == 1
    torch.testing.assert_close(alone.embeddings, together.embeddings[:1], atol=1e-6, rtol=0)
