"""When the engine generates beside training, and what refuses it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from rlhf_core import ConfigError
from rlhf_core.capabilities import STALE_ROLLOUTS
from rlhf_core.contracts import EngineSpec
from rlhf_plugin_local.engine.beside import decision
from rlhf_plugin_local.engine.beside.decision import is_beside_training
from rlhf_plugin_local.engine.config import EmbeddedEngineConfig
from rlhf_testing.errors import has_code

CPU, GPU = torch.device("cpu"), torch.device("cuda")


def decide(option, *, device=CPU, module=None, decode="auto", **spec):
    spec = EngineSpec(
        model_path="none",
        dtype="float32",
        max_length=8,
        max_concurrency=1,
        eos_token_ids=(),
        **{"overlaps": True, **spec},
    )
    config = EmbeddedEngineConfig(overlap=option, decode=decode)
    return is_beside_training(config, spec, module or nn.Linear(4, 4), device)


def test_the_option_decides():
    assert decide("always")
    assert not decide("never")
    assert not decide("never", overlaps=False)


def test_auto_is_a_gpu_with_a_model_of_a_size_that_gained(monkeypatch):
    assert not decide("auto", device=GPU)
    monkeypatch.setattr(decision, "LARGEST_THAT_GAINS", 20.0)
    assert decide("auto", device=GPU)
    assert not decide("auto", device=GPU, module=nn.Linear(4, 5))
    assert not decide("auto", device=GPU, decode="stepwise")
    assert not decide("auto", device=GPU, overlaps=False)
    assert not decide("auto", device=CPU)


@pytest.mark.parametrize(
    ("message", "setting"),
    [
        ("Set --rollout.max_staleness 1", {"overlaps": False}),
        ("a base in 4 bits", {"quantization": {"load_in_4bit": True}}),
        (
            "Set --actor.lora.dropout 0",
            {"device": GPU, "module": nn.ModuleDict({"lora_dropout": nn.Dropout(0.1)})},
        ),
    ],
)
def test_where_it_cannot_be_always_says_why_and_auto_does_without(message, setting, monkeypatch):
    monkeypatch.setattr(decision, "LARGEST_THAT_GAINS", 1e9)

    with pytest.raises(
        ConfigError,
        match=f"--engine.embedded.overlap always: .*{message}",
        check=has_code("engine/no-overlap"),
    ):
        decide("always", **setting)
    assert not decide("auto", **{"device": GPU, **setting})


def test_always_needs_a_run_that_generates_ahead():
    assert EmbeddedEngineConfig(overlap="always").needed_by_options() == {STALE_ROLLOUTS}
    assert EmbeddedEngineConfig().needed_by_options() == frozenset()
    assert EmbeddedEngineConfig(overlap="never").needed_by_options() == frozenset()
