"""Models that Transformers makes of a config.json, and files that lack an entry."""

import pytest
from transformers import AutoConfig

from rlhf_core import ConfigError
from rlhf_plugin_plan.model import measured, towers
from rlhf_plugin_plan.model.shapes import shape_of
from rlhf_testing.errors import has_code

SECTIONS = "partial_rotary_factor in its rope_parameters, is missing"
TOKENS = "vocab_size or pad_token_id, in text_config if there is one, is missing"
LACKS = {
    "glm4v": SECTIONS,
    "glm46v": SECTIONS,
    "glm4v_moe": SECTIONS,
    "idefics3": TOKENS,
    "smolvlm": TOKENS,
}
"""What the defaults of a family lack, so that its own code cannot compute with them."""


@pytest.mark.parametrize("family", [*towers.QWEN, *towers.COUNTED_TOWERS, *measured.SEEING])
def test_defaults_of_a_family_that_sees_are_planned_or_refused_with_what_they_lack(family):
    config = AutoConfig.for_model(family).to_dict()

    if family in LACKS:
        with pytest.raises(ConfigError, match=LACKS[family], check=has_code("plan/refused-config")):
            shape_of(config, family)
    else:
        assert shape_of(config, family).parameters > 1e9


def test_glm_is_planned_with_the_entry_that_its_defaults_lack():
    """GLM-4.1V's rotary embeddings turn half of a head: 64 of 128 numbers are 32 frequencies, of sections 8, 12, 12."""
    text = {"partial_rotary_factor": 0.5}

    shape = shape_of({"model_type": "glm4v", "text_config": text, "vision_config": {}}, "glm4v")

    assert shape.head_dim == 128
    assert shape.tower_parameters > 0


def test_a_file_with_the_name_of_a_family_that_sees_alone_is_one_of_its_defaults():
    """Mistral 3's, for instance: Transformers fills in text model and tower."""
    assert shape_of({"model_type": "mistral3"}, "mistral3").tower_parameters > 0


def test_a_tower_that_cannot_read_an_image_is_refused_with_transformers_words():
    """Idefics 3: 7 patches a side are none that pairs of them become features of."""
    text = {"vocab_size": 128_259}
    sizes = {"image_size": 224, "patch_size": 32}
    values = {"model_type": "idefics3", "text_config": text, "vision_config": sizes}

    with pytest.raises(
        ConfigError,
        match="sizes of an image in vision_config",
        check=has_code("plan/refused-config"),
    ):
        shape_of(values, "config.json").vision.flops(256)
