"""The conformance kit's checks of engines, each with a vLLM of its own."""

from __future__ import annotations

import pytest

from rlhf_testing.checks import load_alone
from rlhf_testing.conformance import parametrize_checks, subject

REGISTERED = load_alone("rlhf_plugin_vllm").get("rlhf_engines", "vllm")

pytestmark = [pytest.mark.scale, pytest.mark.slow]


@parametrize_checks("rlhf_engines", {"vllm": subject(REGISTERED, kv_cache_gib=0.25, threads=1)})
def test_contract(check, subject):
    pytest.importorskip("vllm")

    check(subject)
