"""Two ranks under adapters against one rank of the torch backend, at every stage."""

import json

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

pytestmark = [pytest.mark.scale, pytest.mark.slow]
pytest.importorskip("deepspeed")
stages = pytest.mark.parametrize("stage", [0, 1, 2, 3])
adapters = pytest.mark.parametrize("adapter", ["lora", "merged", "dora"])
saved = pytest.mark.parametrize("kind", ["float32", "bfloat16", "critic"])
ROUNDING = {"atol": 1e-6, "rtol": 0.0}


@pytest.fixture(scope="module")
def folder(run_ranks, tmp_path_factory):
    """The folder into which two ranks have written what came of the scenarios."""
    return run_ranks("adapters", tmp_path_factory.mktemp("adapters"))


@pytest.fixture(scope="module")
def found(folder, read_ranks):
    """What the two ranks found at a stage in a scenario."""
    return lambda stage, name: read_ranks(folder, stage, name)


@pytest.fixture(scope="module")
def alone(models, scenarios, adapting, tmp_path_factory):
    """What one rank of the torch backend found; its files are in ``folder``."""
    from rlhf_plugin_local.config import TorchBackendConfig
    from rlhf_plugin_local.torch_backend import TorchBackend

    folder = tmp_path_factory.mktemp("one_rank")
    make = lambda **_: TorchBackend(TorchBackendConfig(device="cpu"))  # noqa: E731
    result = scenarios.run(adapting.adapting, scenarios.Place(make, models, folder))
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
    base = AutoModelForCausalLM.from_pretrained(models / "qwen3").state_dict()

    names = {name.rpartition(".")[2] for name in rank.weights("lora")}

    assert names == {"lora_A", "lora_B"}
    for adapter in ("merged", "dora"):
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
    place = folder / f"stage{stage}" / "resuming_adapters"
    averages = [
        load_file(place / f"{name} {kind}" / "adapter_model.safetensors")
        for name in ("straight", "resumed")
    ]
    torch.testing.assert_close(averages[0], averages[1], atol=0, rtol=0)


@stages
@saved
def test_a_checkpoint_holds_what_is_trained_and_not_the_base(folder, found, stage, kind):
    place = folder / f"stage{stage}" / "resuming_adapters" / f"saved {kind}"
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
    exported = folder / f"stage{stage}" / "adapting" / adapter

    loaded = [
        PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(models / "qwen3"), path)
        for path in (exported, alone.folder / adapter)
    ]

    states = [dict(model.named_parameters()) for model in loaded]
    torch.testing.assert_close(*states, **ROUNDING)
    assert sum("lora_B" in name and bool(weight.any()) for name, weight in states[0].items()) > 2
    assert [path.name for path in exported.glob("*.safetensors")] == ["adapter_model.safetensors"]
    assert AutoTokenizer.from_pretrained(exported).encode("ab c?")


@stages
def test_a_critic_is_exported_with_its_head(folder, stage):
    exported = folder / f"stage{stage}" / "resuming_adapters" / "straight critic"

    head = load_file(exported / "value_head.safetensors")

    assert float(head["weight"].abs().max()) > 0
    assert (exported / "adapter_model.safetensors").exists()
