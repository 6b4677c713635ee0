"""Episodes whose turns show the last images alone: each row has the numbers that its engine read."""

from pathlib import Path

import numpy as np
import pytest
from tests.plugins.vlm.test_more_families import shuffled
from tests.plugins.vlm.vlm_material import Pictures, Stage, policy_spec

from rlhf_plugin_agents.config import MultiTurnConfig
from rlhf_testing.tiny_vision import write_tiny_vision_model


@pytest.mark.parametrize("family", ["qwen2_5_vl", "gemma3"])
def test_logprobs_of_windowed_turns_are_those_of_transformers(tmp_path, all_plugins, family):
    path = write_tiny_vision_model(tmp_path / "model", family, initializer_range=0.1)
    media = Path(tmp_path / "run" / "media")
    stage = Stage(path, media, all_plugins, policy_spec(path, media))
    backend = stage.backend()

    batch = stage.play(
        backend,
        prompts=3,
        samples=2,
        environment=lambda: Pictures(turns=5),
        config=MultiTurnConfig(last_images=1),
    )

    assert len(batch) > 6
    assert batch.num_media.max() == 1
    logprobs = backend.logprobs(batch)
    np.testing.assert_allclose(logprobs, batch.rollout_logprobs, atol=1e-4)
    np.testing.assert_allclose(logprobs, stage.own_logprobs(batch), atol=1e-5)
    assert np.abs(backend.logprobs(shuffled(stage, batch)) - logprobs).max() > 1e-4
    alone = [backend.logprobs(batch.select(np.array([row]))) for row in range(len(batch))]
    np.testing.assert_allclose(np.concatenate(alone), logprobs, atol=1e-5)
