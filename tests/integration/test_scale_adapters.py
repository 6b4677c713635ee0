"""Ray places, vLLM serves the adapter or merged weights, DeepSpeed trains it on two ranks."""

import os

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM

from rlhf_testing.tiny import write_tiny_model

pytest.importorskip("ray")
pytest.importorskip("vllm")
pytest.importorskip("deepspeed")

pytestmark = [pytest.mark.scale, pytest.mark.slow]

ONE_PROCESS = (
    *("--engine", "vllm", "--engine.vllm.threads", "1"),
    *("--reward", "vary.py:vary", "--algo.kl.coef", "0.05"),
    *("--actor.adapter", "lora", "--actor.lora.rank", "8", "--actor.adam.lr", "1e-2"),
)
PLACED = (
    *ONE_PROCESS,
    *("--runtime", "ray", "--runtime.ray.ranks.policy", "2", "--backend", "deepspeed"),
)

STALE = """
from rlhf_core import Component, hookimpl
from rlhf_core.capabilities import SERVES_ADAPTERS
from rlhf_plugin_vllm.config import VllmEngineConfig
from rlhf_plugin_vllm.engine import VllmEngine


class Stale(VllmEngine):
    \"""Takes every version of the adapter, and goes on serving the first.\"""

    async def update_weights(self, version, source):
        buckets = list(source.buckets())
        if version == 0:
            self._first = buckets
        return await super().update_weights(version, Kept(self._first))


class Kept:
    def __init__(self, buckets):
        self._buckets = buckets

    def module(self):
        return None

    def buckets(self):
        return iter(self._buckets)


@hookimpl
def rlhf_engines():
    return [
        Component(
            name="stale",
            config=VllmEngineConfig,
            factory="stale_engine:Stale",
            provides=frozenset({SERVES_ADAPTERS}),
        )
    ]
"""


@pytest.mark.parametrize(
    ("serve", "stage"), [("adapter", "3"), pytest.param("merged", "2", marks=pytest.mark.matrix)]
)
def test_sampler_and_trainer_agree_about_the_adapter(train, workspace, serve, stage):
    """After every update the run compares a digest of what vLLM serves with the trainer's."""
    flags = ("--actor.lora.serve", serve, "--backend.deepspeed.zero_stage", stage)

    lines = [line for line in train("run", *PLACED, *flags) if "metrics" in line]

    assert len(lines) == 2
    for line in lines:
        assert line["metrics"]["mismatch/logprob_diff_mean"] < 1e-4
        assert line["metrics"]["policy/grad_norm"] > 0
    assert lines[0]["metrics"]["kl/ref"] == pytest.approx(0, abs=1e-6)
    assert lines[1]["metrics"]["kl/ref"] > 1e-5
    base = AutoModelForCausalLM.from_pretrained(workspace / "model", dtype=torch.float32)
    exported = PeftModel.from_pretrained(base, workspace / "run" / "model")
    assert any(
        "lora_B" in name and bool(weight.any()) for name, weight in exported.named_parameters()
    )


@pytest.mark.matrix
def test_an_adapter_that_goes_on_is_served_and_is_its_own_reference(train, workspace):
    """The folder is PEFT's, with factors of two ranks; vLLM takes them beside the base."""
    base = AutoModelForCausalLM.from_pretrained(workspace / "model", dtype=torch.float32)
    config = LoraConfig(
        r=8, target_modules=["q_proj", "down_proj"], rank_pattern={"layers.0.mlp.down_proj": 2}
    )
    begun = get_peft_model(base, config)
    for parameter in begun.parameters():
        if parameter.requires_grad:
            torch.nn.init.normal_(parameter, std=0.1)
    begun.save_pretrained(workspace / "begun")
    at = PLACED.index("--actor.lora.rank")
    flags = [*PLACED[:at], "--actor.lora.init_from", "begun", *PLACED[at + 2 :]]

    found = train("run", *flags, "--backend.deepspeed.zero_stage", "2")

    first, second = (line["metrics"] for line in found if "metrics" in line)
    assert first["mismatch/logprob_diff_mean"] < 1e-4
    assert second["mismatch/logprob_diff_mean"] < 1e-4
    assert first["kl/ref"] == 0.0
    assert abs(second["kl/ref"]) > 1e-5


@pytest.mark.matrix
def test_sampler_and_trainer_agree_about_an_adapter_beside_a_base_in_four_bits(train, workspace):
    """DeepSpeed packs the base in each rank, and vLLM in its own process; the run compares what both unpack."""
    write_tiny_model(workspace / "model", hidden_size=64, num_layers=2, num_heads=2)
    placed = [word.replace("lora", "qlora") for word in PLACED]

    found = train("run", *placed, "--backend.deepspeed.zero_stage", "0")

    lines = [line for line in found if "metrics" in line]

    assert len(lines) == 2
    for line in lines:
        assert line["metrics"]["mismatch/logprob_diff_mean"] < 1e-4
        assert line["metrics"]["policy/grad_norm"] > 0
    assert abs(lines[1]["metrics"]["kl/ref"]) > 1e-5
    assert (workspace / "run/model/adapter_model.safetensors").exists()


# Modules that vLLM imports warn, in one process in that of the tests.
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    "placed",
    [
        pytest.param(ONE_PROCESS, id="one process"),
        pytest.param(
            [*PLACED, "--runtime.ray.weights", "store"], id="placed", marks=pytest.mark.matrix
        ),
    ],
)
def test_an_engine_that_keeps_the_old_factors_ends_the_run(
    train, workspace, monkeypatch, capsys, placed
):
    """The run compares, wherever its ranks are; that those that are placed have a digest is in their own tests."""
    (workspace / "stale_engine.py").write_text(STALE)
    monkeypatch.syspath_prepend(workspace)
    paths = [str(workspace), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    monkeypatch.setenv("RLHF_PLUGINS", "stale_engine")
    stale = ["stale" if word == "vllm" else word for word in placed]
    stale = [word.replace("engine.vllm.", "engine.stale.") for word in stale]

    train("run", *stale, code=1)

    assert (
        "after the update to version 1 the engine serves other weights" in capsys.readouterr().err
    )
