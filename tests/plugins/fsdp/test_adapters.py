"""Two ranks under adapters against one rank of the torch backend."""

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

pytestmark = pytest.mark.slow
adapters = pytest.mark.parametrize("adapter", ["lora", "merged", "dora", "begun", "rows", "stacks"])
ROUNDING = {"atol": 1e-6, "rtol": 0.0}


def plain(models, adapter):
    """The base of an adapter."""
    return AutoModelForCausalLM.from_pretrained(
        models / ("qwen3_moe" if adapter == "stacks" else "qwen3")
    )


@pytest.fixture(scope="module")
def folder(run_ranks, tmp_path_factory):
    """The folder into which two ranks have written what came of the scenarios."""
    return run_ranks("adapters", tmp_path_factory.mktemp("adapters"))


@pytest.fixture(scope="module")
def ranks(folder, read_ranks):
    return read_ranks(folder, "adapting")


@adapters
def test_two_updates_are_those_of_one_rank(ranks, expected, adapter, assert_same_rows):
    """Engines get the same factors, or the same merged weights, and the same ones before the first update."""
    alone = expected("adapting")

    for rank in ranks:
        torch.testing.assert_close(rank.weights(adapter), alone.weights(adapter), **ROUNDING)
        assert rank.weights(adapter)
        assert rank.facts[f"checksum {adapter}"] == rank.facts[f"digest {adapter}"]
    assert ranks[0].facts[f"checksum {adapter}"] == ranks[1].facts[f"checksum {adapter}"]
    assert_same_rows(ranks, alone, f"logprobs {adapter}", atol=1e-5)
    assert_same_rows(ranks, alone, f"base 1 {adapter}")


def test_losses_and_norms_are_those_of_one_rank(ranks, expected, assert_same_metrics):
    assert_same_metrics(ranks, expected("adapting"))


def test_engines_get_factors_alone_unless_they_are_merged(ranks, models):
    names = {name.rpartition(".")[2] for name in ranks[0].weights("lora")}

    assert names == {"lora_A", "lora_B"}
    for adapter in ("merged", "dora", "rows", "stacks"):
        base = plain(models, adapter).state_dict()
        assert {name.partition("/")[2] for name in ranks[0].weights(adapter)} == set(base)


@pytest.mark.parametrize("kind", ["float32", "rows", "stacks", "bfloat16", "critic"])
def test_what_is_trained_moves_is_saved_and_goes_on_to_the_bit(folder, read_ranks, kind):
    rank = read_ranks(folder, "moving_adapters")[0]
    moved = {
        (name.partition("/")[0].removeprefix(f"{kind} "), name.partition("/")[2]): float(distance)
        for name, distance in rank.tensors.items()
        if name.startswith(f"{kind} ")
    }
    assert [key for key, distance in moved.items() if (distance > 0) != (key[0] == "trained")] == []

    for rank in read_ranks(folder, "resuming_adapters"):
        assert rank.facts[f"differing {kind}"] == []
        place = folder / "resuming_adapters"
        parts = [load_file(path) for path in (place / f"saved {kind}").glob("part-*")]
        held = {key.partition("::")[0] for part in parts for key in part}
        assert held == set(rank.facts[f"trained {kind}"])
    averages = [
        load_file(place / f"{name} {kind}" / "adapter_model.safetensors")
        for name in ("straight", "resumed")
    ]
    torch.testing.assert_close(averages[0], averages[1], atol=0, rtol=0)
    assert (place / "straight critic" / "value_head.safetensors").exists()


@adapters
def test_an_export_is_a_peft_folder(folder, expected, models, adapter):
    exported = folder / "adapting" / adapter

    loaded = [
        PeftModel.from_pretrained(plain(models, adapter), path)
        for path in (exported, expected("adapting").folder / adapter)
    ]

    states = [dict(model.named_parameters()) for model in loaded]
    torch.testing.assert_close(*states, **ROUNDING)
    assert sum("lora_B" in name and bool(weight.any()) for name, weight in states[0].items()) > 2
