"""Two ranks under adapters against one rank of the torch backend, at every stage."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from rlhf_core import ConfigError
from rlhf_plugin_local.config import TorchBackendConfig
from rlhf_plugin_local.torch_backend import TorchBackend
from rlhf_testing.errors import has_code

pytestmark = [pytest.mark.scale, pytest.mark.slow]
pytest.importorskip("deepspeed")
# Stages 2 and 3 cut gradients and weights; what they share with the others the scenarios of rows have at each stage.
stages = pytest.mark.parametrize(
    "stage", [*(pytest.param(stage, marks=pytest.mark.matrix) for stage in (0, 1)), 2, 3]
)
adapters = pytest.mark.parametrize("adapter", ["lora", "merged", "dora", "begun", "rows", "stacks"])
saved = pytest.mark.parametrize("kind", ["float32", "rows", "stacks", "bfloat16", "critic"])
ROUNDING = {"atol": 1e-6, "rtol": 0.0}


def in_torch(**options):
    return TorchBackend(TorchBackendConfig(device="cpu"))


def plain(models, adapter):
    """The base of an adapter."""
    return AutoModelForCausalLM.from_pretrained(
        models / ("qwen3_moe" if adapter == "stacks" else "qwen3")
    )


@pytest.fixture(scope="module")
def folder(folder_of):
    """The folder into which two ranks have written what came of the scenarios at a stage."""
    return lambda stage: folder_of("adapters", stage)


@pytest.fixture(scope="module")
def found(folder, read_ranks):
    """What the two ranks found at a stage in a scenario."""
    return lambda stage, name: read_ranks(folder(stage), stage, name)


@pytest.fixture(scope="module")
def alone(models, scenarios, adapting, tmp_path_factory):
    """What one rank of the torch backend found; its files are in ``folder``."""
    folder = tmp_path_factory.mktemp("one_rank")
    place = scenarios.Place(in_torch, models, folder)
    result = scenarios.run(adapting.adapting, place)
    result.folder = folder
    return result


@stages
@adapters
def test_two_updates_are_those_of_one_rank(found, alone, stage, adapter):
    """Engines get the same factors, or the same merged weights, and the same ones before the first update."""
    ranks = found(stage, "adapting")

    for rank in ranks:
        torch.testing.assert_close(rank.weights(adapter), alone.weights(adapter), **ROUNDING)
        assert rank.weights(adapter)
        first = f"first checksum {adapter}"
        assert rank.facts[first] == alone.facts[first] != rank.facts[f"checksum {adapter}"]
        assert rank.facts[f"checksum {adapter}"] == rank.facts[f"digest {adapter}"]
    assert ranks[0].facts[f"checksum {adapter}"] == ranks[1].facts[f"checksum {adapter}"]


@stages
def test_losses_and_norms_are_those_of_one_rank(found, alone, stage, assert_same_metrics):
    assert_same_metrics(found(stage, "adapting"), alone, more_passes=True)


@stages
@adapters
def test_the_base_is_the_policy_with_its_adapter_off(
    found, alone, stage, adapter, assert_same_rows
):
    ranks = found(stage, "adapting")

    for rank in ranks:
        for seed in range(2):
            first, base = rank.tensors[f"first {adapter}"], rank.tensors[f"base {seed} {adapter}"]
            tolerance = {"atol": 1e-5, "rtol": 0.0} if adapter == "dora" else {"atol": 0, "rtol": 0}
            torch.testing.assert_close(base, first, **tolerance)
    assert_same_rows(ranks, alone, f"logprobs {adapter}", atol=1e-5)
    assert_same_rows(ranks, alone, f"base 1 {adapter}")
    moved = alone.tensors[f"logprobs {adapter}"] - alone.tensors[f"base 1 {adapter}"]
    assert float(moved.abs().max()) > 1e-2


@stages
def test_engines_get_factors_alone_unless_they_are_merged(found, models, stage):
    rank = found(stage, "adapting")[0]
    names = {name.rpartition(".")[2] for name in rank.weights("lora")}

    assert names == {"lora_A", "lora_B"}
    for adapter in ("merged", "dora", "rows", "stacks"):
        base = plain(models, adapter).state_dict()
        assert {name.partition("/")[2] for name in rank.weights(adapter)} == set(base)


@stages
@saved
def test_what_is_trained_moves_and_the_base_does_not(found, stage, kind):
    rank = found(stage, "moving_adapters")[0]

    moved = {
        (name.partition("/")[0].removeprefix(f"{kind} "), name.partition("/")[2]): float(distance)
        for name, distance in rank.tensors.items()
        if name.startswith(f"{kind} ")
    }

    assert {kind for kind, _ in moved} == {"trained", "frozen"}
    assert [key for key, distance in moved.items() if (distance > 0) != (key[0] == "trained")] == []
    assert sum(kind == "trained" for kind, _ in moved) > 2 * 7


@stages
@saved
def test_a_restored_run_goes_on_to_the_bit(folder, found, stage, kind):
    for rank in found(stage, "resuming_adapters"):
        assert rank.facts[f"differing {kind}"] == []
    place = folder(stage) / f"stage{stage}" / "resuming_adapters"
    averages = [
        load_file(place / f"{name} {kind}" / "adapter_model.safetensors")
        for name in ("straight", "resumed")
    ]
    torch.testing.assert_close(averages[0], averages[1], atol=0, rtol=0)


@stages
@saved
def test_a_checkpoint_holds_what_is_trained_and_not_the_base(folder, found, stage, kind):
    place = folder(stage) / f"stage{stage}" / "resuming_adapters" / f"saved {kind}"
    trained = set(found(stage, "resuming_adapters")[0].facts[f"trained {kind}"])

    if stage == 0:
        names = set(load_file(place / "model.safetensors"))
    else:
        names = set(json.loads((place / "state.json").read_text())["parameters"])
        parts = [load_file(path) for path in place.glob("part-*")]
        assert {key.partition("::")[0] for part in parts for key in part} == trained

    assert names == trained


@stages
@adapters
def test_an_export_is_a_peft_folder(folder, alone, models, stage, adapter):
    exported = folder(stage) / f"stage{stage}" / "adapting" / adapter

    loaded = [
        PeftModel.from_pretrained(plain(models, adapter), path)
        for path in (exported, alone.folder / adapter)
    ]

    states = [dict(model.named_parameters()) for model in loaded]
    torch.testing.assert_close(*states, **ROUNDING)
    assert sum("lora_B" in name and bool(weight.any()) for name, weight in states[0].items()) > 2
    assert [path.name for path in exported.glob("*.safetensors")] == ["adapter_model.safetensors"]
    assert AutoTokenizer.from_pretrained(exported).encode("ab c?")


@stages
def test_a_critic_is_exported_with_its_head(folder, stage):
    exported = folder(stage) / f"stage{stage}" / "resuming_adapters" / "straight critic"

    head = load_file(exported / "value_head.safetensors")

    assert float(head["weight"].abs().max()) > 0
    assert (exported / "adapter_model.safetensors").exists()


@pytest.fixture
def place(models, scenarios, tmp_path):
    """One rank of DeepSpeed in this process."""
    from rlhf_plugin_deepspeed.backend import DeepSpeedBackend
    from rlhf_plugin_deepspeed.config import DeepSpeedConfig

    def make(**options):
        return DeepSpeedBackend(DeepSpeedConfig(device="cpu", **options))

    return scenarios.Place(make, models, tmp_path)


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_a_quantized_base_is_refused_where_deepspeed_holds_it(place, material, stage):
    pytest.importorskip("bitsandbytes")

    with pytest.raises(
        ConfigError,
        match=r"quantized base.* --backend.deepspeed.zero_stage 0",
        check=has_code("deepspeed/quantized-base"),
    ):
        place.start(options={"zero_stage": stage}, adapter=material.adapter("qlora"))


def test_a_quantized_base_at_stage_0_trains_as_in_torch(place, material, scenarios):
    pytest.importorskip("bitsandbytes")
    spec = {"adapter": material.adapter("qlora", rank=4), "optimizer": material.ADAMW}
    backends = [
        place.start(options={"zero_stage": 0}, **spec),
        replace(place, make=in_torch).start(**spec),
    ]

    for backend in backends:
        scenarios.steps(place, backend, (0, 1))

    ends = [
        {name: w.detach() for name, w in backend._model.named_weights() if w.requires_grad}
        for backend in backends
    ]
    torch.testing.assert_close(*ends, **ROUNDING)
    assert all(bool(weight.any()) for name, weight in ends[0].items() if "lora_B" in name)
    # Only an engine that shares the model can sample from it.
    assert backends[0].module() is backends[0]._lm


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_the_live_module_is_shared_with_its_adapter_where_it_is_whole(place, material, stage):
    backend = place.start(options={"zero_stage": stage}, adapter=material.adapter("lora"))

    assert (backend.module() is None) == (stage == 3)
    backend.close()


@pytest.mark.parametrize("stage", [0, 2, 3])
def test_dropout_is_on_in_updates_alone_and_another_one_on_each_rank(
    place, material, scenarios, stage
):
    from rlhf_torch.ranks.ranks import Ranks

    rows, found = material.make_batch().trajectories, []
    for rate, rank in ((0.5, 0), (0.5, 0), (0.5, 1), (0.0, 0)):
        ref = material.adapter("lora", dropout=rate)
        backend = place.start(options={"zero_stage": stage}, adapter=ref, optimizer=material.ADAMW)
        backend._ranks = Ranks(rank, 1, backend._device)
        scenarios.steps(place, backend, (0,))
        np.testing.assert_array_equal(backend.logprobs(rows), backend.logprobs(rows))
        found.append(backend.checksum())
        backend.close()

    assert found[0] == found[1]
    assert len(set(found)) == 3


@pytest.mark.parametrize(
    "how", [{"target": ("lm_head", "q_proj")}, {"modules_to_save": ("lm_head",)}]
)
@pytest.mark.parametrize("stage", [0, 2, 3])
def test_an_adapted_head_trains_as_in_torch(place, material, scenarios, stage, how):
    ref = material.adapter("lora", rank=4, serve="merged", **how)
    ends = []
    for one in (place, replace(place, make=in_torch)):
        backend = one.start("untied", {"zero_stage": stage}, adapter=ref, optimizer=material.ADAMW)
        scenarios.steps(one, backend, (0, 1))
        ends.append(scenarios.Found())
        ends[-1].keep_weights(backend)
        folder = one.folder / str(len(ends))
        backend.export(folder)
        ends[-1].tensors |= load_file(folder / "adapter_model.safetensors")
        backend.close()

    torch.testing.assert_close(ends[0].tensors, ends[1].tensors, **ROUNDING)
