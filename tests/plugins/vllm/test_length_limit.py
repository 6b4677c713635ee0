"""Sequences that vLLM would rotate by other frequencies than a trainer are refused before it starts."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from transformers import AutoConfig

from rlhf_core import ConfigError
from rlhf_plugin_vllm.length_limit import check_length
from rlhf_testing.errors import has_code

SHORT, LONG = [1.0] * 4, [2.0] * 4


def config_of(kind, **options):
    parameters = {"rope_type": kind, "rope_theta": 10000.0, **options}
    if kind == "longrope":
        parameters |= {"original_max_position_embeddings": 32}
    return AutoConfig.for_model(
        "llama",
        vocab_size=100,
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=4,
        max_position_embeddings=128 if kind == "longrope" else 32,
        rope_parameters=parameters,
    )


@pytest.mark.parametrize(
    "config",
    [
        config_of("dynamic", factor=4.0),
        config_of("longrope", short_factor=SHORT, long_factor=LONG),
    ],
    ids=["dynamic", "longrope"],
)
def test_lengths_at_which_earlier_tokens_rotate_anew_are_refused(config):
    check_length(config, 32, "mine")

    with pytest.raises(
        ConfigError,
        match=r"model mine: .*than 32 tokens.*allows 33",
        check=has_code("model/rope-changes"),
    ):
        check_length(config, 33, "mine")


@pytest.mark.parametrize(
    "config",
    [
        config_of("default"),
        config_of("linear", factor=4.0),
        config_of("longrope", short_factor=LONG, long_factor=LONG),
        AutoConfig.for_model("gemma3_text"),  # parameters by kind of layer
        AutoConfig.for_model("opt"),  # none
    ],
    ids=["default", "linear", "equal_factors", "gemma3", "opt"],
)
def test_frequencies_that_do_not_change_have_no_limit(config):
    check_length(config, 10**6, "mine")


def test_a_window_that_vllm_makes_longer_is_a_limit():
    check_length(AutoConfig.for_model("cohere2", sliding_window=8), 8, "mine")
    check_length(AutoConfig.for_model("gemma3_text", sliding_window=8), 9, "mine")

    with pytest.raises(ConfigError, match=r"mine.*8 tokens.*of 9\.", check=has_code("vllm/window")):
        check_length(AutoConfig.for_model("cohere2", sliding_window=8), 9, "mine")


@pytest.mark.scale
@pytest.mark.slow
def test_the_engine_says_so_before_it_starts(spec, folder, tmp_path, no_process_left):
    pytest.importorskip("vllm")
    from rlhf_plugin_vllm.config import VllmEngineConfig
    from rlhf_plugin_vllm.engine import VllmEngine

    config = AutoConfig.from_pretrained(folder)
    config.rope_parameters = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10000.0}
    config.save_pretrained(tmp_path)
    long = replace(spec, model_path=str(tmp_path), max_length=config.max_position_embeddings + 1)

    with pytest.raises(
        ConfigError,
        match="frequencies of its rotary embedding change",
        check=has_code("model/rope-changes"),
    ):
        asyncio.run(VllmEngine(VllmEngineConfig()).start_empty(long))
