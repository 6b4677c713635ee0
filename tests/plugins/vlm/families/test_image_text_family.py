"""Bases of the families: what each family says itself."""

import pytest

from rlhf_plugin_vlm.families.image_text_family import ImageTextFamily


class Blind(ImageTextFamily):
    """A family that does not say how its model takes an image."""


def test_a_family_says_how_its_model_takes_an_image():
    with pytest.raises(TypeError, match="picture"):
        Blind("some/model", trust_remote_code=False)
