"""An answer below a grammar by vLLM itself: one case, since an engine takes half a minute to start; the others are in
``test_grammars``."""

import importlib.util

import pytest

from ..masked_reference import check_a_schema

pytestmark = [
    pytest.mark.scale,
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("llguidance") is None, reason="needs llguidance"),
]


def test_vllm_obeys_a_schema_and_has_the_log_probs_of_the_masked_distribution(
    byte_engine, byte_model, byte_tokenizer, run, make_request
):
    check_a_schema(byte_engine, byte_model, byte_tokenizer, run, make_request, temperature=1.5)
