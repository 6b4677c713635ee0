"""Folders with random weights of a published shape are those that a run and vLLM can read."""

import json
from dataclasses import replace

from benchmarks import shapes

from rlhf_plugin_vlm.config import VlmConfig
from rlhf_plugin_vlm.model import ImageTextModel


def test_a_qwen35_that_sees_has_words_and_processors_of_its_own(tmp_path):
    shape = shapes.SHAPES[shapes.SEEING_HYBRID_TINY]

    shapes.write_model(shapes.SEEING_HYBRID_TINY, tmp_path)

    family = ImageTextModel(VlmConfig()).family(str(tmp_path), trust_remote_code=False)
    last = shape.vocabulary - 1
    assert family.tokens.marker_id == last - 1
    assert family.tokens.never_sampled == (last - 1, last)
    settings = [
        json.loads((tmp_path / name).read_text())
        for name in ("preprocessor_config.json", "video_preprocessor_config.json")
    ]
    assert [each["patch_size"] for each in settings] == [16, 16]


def test_the_published_qwen35_is_its_text_model_and_a_tower():
    with_tower = shapes.SHAPES["qwen3.5-0.8b-vision"]

    assert with_tower.sees
    assert replace(with_tower, vision_layers=0) == shapes.SHAPES["qwen3.5-0.8b"]
