"""Families of tiny image-text models, by their names."""

import pytest

from rlhf_testing.tiny import tiny_tokenizer
from rlhf_testing.tiny_vision import (
    MORE_VISION_FAMILIES,
    VISION_FAMILIES,
    family_of,
    tiny_vision_config,
    tiny_vision_tokenizer,
    write_image_processor,
)

SIZES = {
    "hidden_size": 32,
    "num_layers": 2,
    "num_heads": 4,
    "vision_layers": 1,
    "initializer_range": 0.02,
    "tied": False,
}


@pytest.mark.parametrize(
    "make",
    [
        family_of,
        lambda family: tiny_vision_tokenizer(family=family),
        lambda family: tiny_vision_config(family, tiny_tokenizer(), **SIZES),
        lambda family: write_image_processor(None, family),
    ],
)
def test_an_unknown_family_is_refused_with_the_names_of_all(make):
    with pytest.raises(ValueError, match=r"unknown family 'llama'; expected one of ") as error:
        make("llama")

    named = str(error.value).partition("one of ")[2].split(", ")
    assert sorted(named) == sorted([*VISION_FAMILIES, *MORE_VISION_FAMILIES])
