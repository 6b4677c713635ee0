"""Two ranks, with rows and micro-batches cut unevenly, against one rank of the torch backend."""

import json

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

pytestmark = pytest.mark.slow
ROUNDING = {"atol": 1e-6, "rtol": 0.0}
KINDS = ("float32", "bfloat16", "whole", "whole_bfloat16")


@pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-mean", "seq-mean-token-sum-norm"])
def test_the_gradient_is_that_of_one_rank(found, expected, mode, assert_same_metrics):
    """With a learning rate of 1 the weights move by the gradient, so their distance is its error."""
    ranks, alone = found("gradient"), expected("gradient")

    torch.testing.assert_close(ranks[0].weights(mode), alone.weights(mode), **ROUNDING)
    assert_same_metrics(ranks, alone)


@pytest.mark.parametrize("name", ["logprobs", "entropies", "losses", "clipped"])
def test_the_step_gives_each_rank_the_scores_of_its_rows(found, expected, name, assert_same_rows):
    assert_same_rows(found("gradient"), expected("gradient"), f"{name}/token-mean")


def test_prompts_that_ranks_compute_once_change_nothing(found, expected, assert_same_rows):
    ranks, alone = found("same_prompts"), expected("same_prompts")

    torch.testing.assert_close(ranks[0].weights(), alone.weights(), **ROUNDING)
    for name in ("logprobs", "scored"):
        assert_same_rows(ranks, alone, name)


@pytest.mark.parametrize(
    "name",
    ["training", "recomputing", "experts", "balanced", "replayed", "resting", "untied", "whole"],
)
def test_clipping_schedule_and_optimizer_are_those_of_one_rank(
    found, expected, name, assert_same_metrics
):
    ranks, alone = found(name), expected(name)

    torch.testing.assert_close(ranks[0].weights(), alone.weights(), **ROUNDING)
    assert_same_metrics(ranks, alone)


def test_muon_is_that_of_one_rank(found, expected, assert_same_metrics):
    """Newton-Schulz is done in bfloat16 and magnifies rounding of the gradient: weights that have moved by 0.017 end
    up to 3e-4 apart."""
    ranks, alone = found("muon"), expected("muon")

    torch.testing.assert_close(ranks[0].weights(), alone.weights(), atol=1e-3, rtol=0)
    assert_same_metrics(ranks, alone, atol=1e-3)


def test_bfloat16_training_stays_near_one_rank(found, expected, assert_same_metrics):
    """Two ranks cut other micro-batches, whose bfloat16 gradients round differently. Weights may end one step of
    bfloat16 apart, 2^-8 of their size."""
    ranks, alone = found("mixed"), expected("mixed")

    torch.testing.assert_close(ranks[0].weights(), alone.weights(), atol=1e-3, rtol=2**-7)
    assert_same_metrics(ranks, alone, atol=5e-3)


@pytest.mark.parametrize("name", ["training", "mixed"])
def test_nan_on_one_rank_is_skipped_by_all_and_counted_once(found, scenarios, name):
    ranks = found(name)

    assert [rank.facts["unchanged"] for rank in ranks] == [True, True]
    metrics = [[rank.facts["metrics"][step] for rank in ranks] for step in range(5)]
    skipped = [sum(m.get("train/skipped_updates", [0.0])[0] for m in both) for both in metrics]
    assert skipped == [float(step == scenarios.NAN_STEP) for step in range(5)]


@pytest.mark.parametrize(
    "name", ["gradient", "critic", "training", "mixed", "experts", "few_rows", "whole", "muon"]
)
def test_all_ranks_have_the_same_bits(found, name):
    first, second = found(name)
    common = [key for key in first.tensors if "." in key]

    assert common
    for key in common:
        torch.testing.assert_close(second.tensors[key], first.tensors[key], atol=0, rtol=0)
    assert second.facts.get("checksum") == first.facts.get("checksum")


@pytest.mark.parametrize("ema", [True, False])
def test_an_export_is_a_plain_model(two_ranks, found, expected, ema):
    name = "ema" if ema else "plain"

    model = AutoModelForCausalLM.from_pretrained(two_ranks / "training" / name)

    alone = AutoModelForCausalLM.from_pretrained(expected("training").folder / name)
    weights = dict(model.named_parameters())
    torch.testing.assert_close(weights, dict(alone.named_parameters()), **ROUNDING)
    facts = found("training")[0].facts
    assert facts["checksum after export"] == facts["checksum"]


def test_a_critic_learns_values_like_one_rank(two_ranks, found, expected, assert_same_rows):
    ranks, alone = found("critic"), expected("critic")

    assert_same_rows(ranks, alone, "values", atol=1e-5)
    torch.testing.assert_close(ranks[0].weights(), alone.weights(), **ROUNDING)
    folders = (two_ranks / "critic" / "critic", alone.folder / "critic")
    heads = [load_file(folder / "value_head.safetensors") for folder in folders]
    torch.testing.assert_close(heads[0], heads[1], **ROUNDING)
    assert float(heads[0]["weight"].abs().max()) > 1e-3


@pytest.mark.parametrize("kind", KINDS)
def test_a_restored_run_goes_on_to_the_bit(two_ranks, found, kind):
    for rank in found("resuming"):
        assert rank.facts[f"restored {kind}"]
        assert rank.facts[f"went on {kind}"]
    averages = [
        load_file(two_ranks / "resuming" / f"{name}_{kind}" / "model.safetensors")
        for name in ("straight", "resumed")
    ]
    torch.testing.assert_close(averages[0], averages[1], atol=0, rtol=0)


def test_a_rank_without_rows_takes_part(found, expected, assert_same_rows):
    ranks, alone = found("few_rows"), expected("few_rows")

    torch.testing.assert_close(ranks[0].weights(), alone.weights(), **ROUNDING)
    for name in ("before", "statistics", "top"):
        assert_same_rows(ranks, alone, name)
        assert not len(ranks[1].tensors[name])


def test_a_reference_scores_like_one_rank(found, expected, assert_same_rows):
    ranks, alone = found("reference"), expected("reference")

    for name in ("logprobs", "again"):
        assert_same_rows(ranks, alone, name)
    assert ranks[0].facts["checksum"] == alone.facts["checksum"]


def test_what_ranks_cannot_share_is_refused(found):
    for rank in found("refused"):
        assert "Rows needs whole parameters, and it keeps row_var of shape" in rank.facts["error"]
    for rank in found("separate_experts"):
        assert "Routed has experts as separate modules" in rank.facts["error"]


def test_weights_that_stay_between_forward_and_backward_change_nothing(found):
    kept, dropped = found("kept_training"), found("training")

    torch.testing.assert_close(kept[0].weights(), dropped[0].weights(), **ROUNDING)


def test_weights_that_stay_are_not_those_before_an_update(found):
    """With the step of SGD that ``gradient`` does, log-probs move by far more than rounding."""
    for rank in found("kept_scoring"):
        moved = rank.tensors["after"] - rank.tensors["before"]
        assert float(moved.abs().max()) > 1e-3


def whole_state(folder):
    """Every tensor of a checkpoint, put together from the files of all ranks; and what is said of the whole."""
    pieces = {}
    state = json.loads((folder / "state.json").read_text())
    for part in range(state["parts"]):
        path = folder / f"part-{part:05d}-of-{state['parts']:05d}.safetensors"
        with safe_open(path, framework="pt") as file:
            runs = json.loads(file.metadata()["runs"])
            for key in sorted(file.keys()):
                start, stop, _ = runs[key.rpartition("::")[0]]
                pieces.setdefault(key, []).append((start, stop, file.get_tensor(key)))
    tensors = {}
    for key, parts in pieces.items():
        parts.sort(key=lambda piece: piece[0])
        if parts[0][2].dim() == 0:  # one number for the whole parameter, in every file
            tensors[key] = parts[0][2]
        else:
            assert [part[0] for part in parts] == [0, *(part[1] for part in parts[:-1])]
            tensors[key] = torch.cat([tensor.reshape(-1) for _, _, tensor in parts])
    del state["parts"]
    return tensors, state


@pytest.fixture(scope="module")
def four(two_ranks, models, run_ranks, read_ranks, tmp_path_factory):
    """Four ranks, which go on from the checkpoints of two."""
    out = tmp_path_factory.mktemp("four")
    (out / "rejoining").mkdir()
    for kind in KINDS:
        saved = two_ranks / "resuming" / f"saved_{kind}"
        (out / "rejoining" / f"handed_{kind}").symlink_to(saved)
    return run_ranks("four", out)


@pytest.mark.parametrize("kind", KINDS)
def test_four_ranks_go_on_from_two(two_ranks, four, kind):
    """Weights, average, optimizer state and counters come back to the bit, and the run ends where two ranks end."""
    original = whole_state(two_ranks / "resuming" / f"saved_{kind}")

    again = whole_state(four / "rejoining" / f"again_{kind}")

    assert again[1] == original[1]
    assert {key.rpartition("::")[2] for key in original[0]} >= {"float32", "ema"}
    assert any("optimizer." in key for key in original[0])
    torch.testing.assert_close(again[0], original[0], atol=0, rtol=0)
    ends = [
        load_file(folder / f"{name}_{kind}" / "model.safetensors")
        for folder, name in (
            (two_ranks / "resuming", "straight"),
            (four / "rejoining", "went_on"),
        )
    ]
    atol = 1e-2 if "bfloat16" in kind else 1e-6
    torch.testing.assert_close(ends[1], ends[0], atol=atol, rtol=0)


def test_four_ranks_train_like_one(four, expected, read_ranks, assert_same_metrics):
    ranks, alone = read_ranks(four, "training"), expected("training")

    torch.testing.assert_close(ranks[0].weights(), alone.weights(), **ROUNDING)
    assert_same_metrics(ranks, alone)
    muon = read_ranks(four, "muon")[0].weights()
    torch.testing.assert_close(muon, expected("muon").weights(), atol=1e-3, rtol=0)
