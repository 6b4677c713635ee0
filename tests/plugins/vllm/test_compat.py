"""Names of modules under an adapter, as vLLM has them."""

from __future__ import annotations

import re

import pytest

pytest.importorskip("vllm")

from rlhf_plugin_vllm.compat import adapted_module

pytestmark = pytest.mark.scale

# vLLM is imported while a test runs: what its modules import warns.

QUERY = "model.layers.3.self_attn.q_proj"


class Model:
    def __init__(self, mapper) -> None:
        self.hf_to_vllm_mapper = mapper


@pytest.fixture
def mapper_of():
    from vllm.model_executor.models.utils import WeightsMapper

    return WeightsMapper


def test_a_model_without_renames_keeps_the_name():
    assert adapted_module(object(), QUERY) == QUERY


def test_a_part_of_a_packed_layer_keeps_its_own_name(mapper_of):
    packed = mapper_of(orig_to_new_stacked={".q_proj": (".qkv_proj", "q")})

    assert adapted_module(Model(packed), QUERY) == QUERY


def test_renames_of_the_model_are_made(mapper_of):
    renamed = mapper_of(
        orig_to_new_prefix={"model.": "language_model.model."},
        orig_to_new_regex={re.compile(r"\.self_attn\."): ".attention."},
    )

    expected = "language_model.model.layers.3.attention.q_proj"
    assert adapted_module(Model(renamed), QUERY) == expected
