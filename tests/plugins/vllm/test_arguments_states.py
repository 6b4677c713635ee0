"""Models whose layers carry states are refused on a CPU, where vLLM computes them otherwise than a trainer."""

from __future__ import annotations

import pytest
from transformers import AutoConfig

from rlhf_core import ConfigError
from rlhf_plugin_vllm.arguments import require_no_states
from rlhf_testing.errors import has_code
from rlhf_testing.tiny_text_families import COMMON, TEXT_FAMILIES


@pytest.mark.parametrize("family", TEXT_FAMILIES)
def test_layers_that_carry_states_are_refused_by_their_kind(tmp_path, family):
    AutoConfig.for_model(family, **{**COMMON, **TEXT_FAMILIES[family]}).save_pretrained(tmp_path)
    kind = {"lfm2": "conv"}.get(family, "linear_attention")

    if family in ("lfm2", "olmo_hybrid", "qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"):
        with pytest.raises(
            ConfigError, match=f"{kind}.*--engine embedded", check=has_code("vllm/carried-state")
        ):
            require_no_states(str(tmp_path), trust_remote_code=False)
    else:
        require_no_states(str(tmp_path), trust_remote_code=False)
