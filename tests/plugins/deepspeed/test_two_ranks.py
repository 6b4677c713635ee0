"""Two ranks, with rows and micro-batches cut unevenly, against one rank of the torch backend, at every stage."""

import json
import math
from functools import partial

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

pytestmark = [pytest.mark.scale, pytest.mark.slow]
STAGES = (0, 1, 2, 3)
every_stage = pytest.mark.parametrize("stage", STAGES)
# Of stage 1 CI has what it does apart from stage 2: sums of gradients, and parts that ranks of other stages read.
stages = pytest.mark.parametrize("stage", [0, pytest.param(1, marks=pytest.mark.matrix), 2, 3])
ROUNDING = {"atol": 1e-6, "rtol": 0.0}


@pytest.fixture
def assert_like_one(assert_same_metrics):
    """Compares metrics; two ranks make more micro-batches than one."""
    return partial(assert_same_metrics, more_passes=True)


@every_stage
@pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-mean", "seq-mean-token-sum-norm"])
def test_the_gradient_is_that_of_one_rank(found, expected, stage, mode, assert_like_one):
    """With a learning rate of 1 the weights move by the gradient, so their distance is its error."""
    ranks, alone = found(stage, "gradient"), expected("gradient")

    torch.testing.assert_close(ranks[0].weights(mode), alone.weights(mode), **ROUNDING)
    assert_like_one(ranks, alone)


@every_stage
def test_the_step_gives_each_rank_the_logprobs_of_its_rows(
    found, expected, stage, assert_same_rows
):
    ranks, alone = found(stage, "gradient"), expected("gradient")

    for name in ("logprobs", "entropies", "losses", "clipped"):
        assert_same_rows(ranks, alone, f"{name}/token-mean")


@stages
def test_prompts_that_ranks_compute_once_change_nothing(
    found, expected, stage, assert_like_one, assert_same_rows
):
    ranks, alone = found(stage, "same_prompts"), expected("same_prompts")

    torch.testing.assert_close(ranks[0].weights(), alone.weights(), **ROUNDING)
    for name in ("logprobs", "scored"):
        assert_same_rows(ranks, alone, name)
    assert_like_one(ranks, alone)


@pytest.mark.parametrize("stage", [0, 2])
@pytest.mark.parametrize(("name", "most"), [("short_of_memory", 40), ("unlike_graphs", 80)])
def test_a_pass_that_fails_on_one_rank_is_done_anew_on_all(
    found, expected, stage, name, most, assert_same_rows
):
    """The rank whose pass fails takes part in its exchange to the end, so that no rank waits. Where memory did not
    suffice, all have smaller micro-batches then."""
    ranks, alone = found(stage, name), expected(name)

    torch.testing.assert_close(ranks[0].weights(), alone.weights(), **ROUNDING)
    assert_same_rows(ranks, alone, "logprobs")
    assert ranks[0].facts["limit"] == ranks[1].facts["limit"] <= most
    assert alone.facts["limit"] <= most
    assert (alone.facts["limit"] < 80) == (most < 80)


@stages
@pytest.mark.parametrize(
    "name",
    ["training", "recomputing", "experts", "balanced", "replayed", "offloaded", "resting", "whole"],
)
def test_clipping_schedule_and_optimizer_are_those_of_one_rank(
    found, expected, stage, name, assert_like_one
):
    ranks, alone = found(stage, name), expected(name)

    torch.testing.assert_close(ranks[0].weights(), alone.weights(), **ROUNDING)
    assert_like_one(ranks, alone)


@stages
def test_muon_is_that_of_one_rank(found, expected, stage, assert_like_one):
    """Newton-Schulz is done in bfloat16 and magnifies rounding of the gradient: also where nothing is cut, at stage 0,
    weights that have moved by 0.017 end up to 3e-4 apart."""
    ranks, alone = found(stage, "muon"), expected("muon")

    torch.testing.assert_close(ranks[0].weights(), alone.weights(), atol=1e-3, rtol=0)
    assert_like_one(ranks, alone, atol=1e-3)


@pytest.mark.parametrize("stage", [0, 3])
def test_experts_that_are_modules_are_collected_as_a_block(found, expected, stage, assert_like_one):
    """Each rank calls others, in its own order; stage 3 would wait for ever if it collected them one by one."""
    ranks, alone = found(stage, "separate_experts"), expected("separate_experts")

    torch.testing.assert_close(ranks[0].weights(), alone.weights(), **ROUNDING)
    assert_like_one(ranks, alone)


@pytest.mark.parametrize("stage", [pytest.param(1, marks=pytest.mark.matrix), 2])
def test_experts_that_are_modules_are_refused_where_gradients_come_in_one_order(found, stage):
    for rank in found(stage, "separate_experts"):
        assert "layers.0.mlp (Routed) has experts as separate modules" in rank.facts["error"]


@stages
@pytest.mark.parametrize("name", ["training", "mixed"])
def test_nan_on_one_rank_is_skipped_by_all_and_counted_once(found, scenarios, stage, name):
    ranks = found(stage, name)

    assert [rank.facts["unchanged"] for rank in ranks] == [True, True]
    metrics = [[rank.facts["metrics"][step] for rank in ranks] for step in range(5)]
    skipped = [sum(m.get("train/skipped_updates", [0.0])[0] for m in both) for both in metrics]
    assert skipped == [float(step == scenarios.NAN_STEP) for step in range(5)]


@stages
@pytest.mark.parametrize(
    "name",
    [
        "gradient",
        "critic",
        "training",
        "mixed",
        "experts",
        "few_rows",
        "reference",
        "whole",
        "muon",
    ],
)
def test_all_ranks_have_the_same_bits(found, stage, name):
    first, second = found(stage, name)
    common = [key for key in first.tensors if "." in key]

    assert common
    for key in common:
        torch.testing.assert_close(second.tensors[key], first.tensors[key], atol=0, rtol=0)
    assert second.facts.get("checksum") == first.facts.get("checksum")


@pytest.mark.parametrize("stage", STAGES[1:])
def test_stages_differ_by_the_rounding_of_float32_alone(two_ranks, found, scenarios, stage):
    """Gradients are summed in float32 whatever the stage, so a bfloat16 sum anywhere would show here.

    Float32 weights are compared, not the bfloat16 weights that come of them: stages add in different orders, so float32
    weights differ in their last bits, and of so many one may lie on the border between two bfloat16 numbers. With a
    schedule of 1/3, 2/3, 1, 0.94 one was -0.00278472900391 at stages 0 and 3, the border itself, and -0.00278472946957
    at stages 1 and 2. The next update of these stages begins with another bfloat16 weight, which changes all bfloat16
    activations a little, and so the comparison ends there.
    """
    first, other = found(0, "saved_updates")[0], found(stage, "saved_updates")[0]

    for update in (f"update{number}" for number in range(scenarios.SAVED_UPDATES)):
        folders = [two_ranks(at, "saved_updates") / update for at in (0, stage)]
        expected = load_file(folders[0] / "float32_copies.safetensors")
        # The gains of norms are near 1, where float32 numbers are 1.2e-7 apart.
        torch.testing.assert_close(
            float32_of_ranks(folders[1], expected), expected, atol=2e-7, rtol=0
        )
        if not all(
            map(torch.equal, other.weights(update).values(), first.weights(update).values())
        ):
            break


@every_stage
def test_bfloat16_weights_are_the_float32_weights_rounded(two_ranks, found, scenarios, stage):
    ranks = found(stage, "saved_updates")

    for update in (f"update{number}" for number in range(scenarios.SAVED_UPDATES)):
        folder = two_ranks(stage, "saved_updates") / update
        one = load_file(two_ranks(0, "saved_updates") / update / "float32_copies.safetensors")
        masters = float32_of_ranks(folder, one) if stage else one
        for rank in ranks:
            weights = {name: rank.tensors[f"{update}/{name}"] for name in masters}
            rounded = {name: master.bfloat16() for name, master in masters.items()}
            torch.testing.assert_close(weights, rounded, atol=0, rtol=0)


def float32_of_ranks(folder, like):
    """The float32 weights of a checkpoint of ZeRO stage 1, 2 or 3, from the parts that ranks have written."""
    whole = {name: torch.full_like(tensor, math.nan) for name, tensor in like.items()}
    for path in folder.glob("part-*.safetensors"):
        with safe_open(path, framework="pt") as file:
            for name, (start, stop, _) in json.loads(file.metadata()["runs"]).items():
                whole[name].view(-1)[start:stop] = file.get_tensor(f"{name}::float32")
    return whole


@stages
def test_bfloat16_training_stays_near_one_rank(found, expected, stage, assert_like_one):
    """Two ranks cut other micro-batches, whose bfloat16 gradients round differently. Weights may end one step of
    bfloat16 apart, 2^-8 of their size."""
    ranks, alone = found(stage, "mixed"), expected("mixed")

    torch.testing.assert_close(ranks[0].weights(), alone.weights(), atol=1e-3, rtol=2**-7)
    assert_like_one(ranks, alone, atol=5e-3)


@stages
@pytest.mark.parametrize("ema", [True, False])
def test_an_export_is_a_plain_model(two_ranks, found, expected, stage, ema):
    name = "ema" if ema else "plain"

    model = AutoModelForCausalLM.from_pretrained(two_ranks(stage, "training") / name)

    alone = AutoModelForCausalLM.from_pretrained(expected("training").folder / name)
    torch.testing.assert_close(
        dict(model.named_parameters()), dict(alone.named_parameters()), **ROUNDING
    )
    ranks = found(stage, "training")
    assert ranks[0].facts["checksum after export"] == ranks[0].facts["checksum"]


def test_the_average_is_not_the_weights(two_ranks):
    """Otherwise the test before this one would compare nothing."""
    folder = two_ranks(3, "training")
    key = "model.layers.0.mlp.down_proj.weight"

    files = [load_file(folder / name / "model.safetensors")[key] for name in ("ema", "plain")]

    assert float((files[0] - files[1]).abs().max()) > 1e-3


@stages
def test_a_critic_learns_values_like_one_rank(
    two_ranks, found, expected, stage, assert_like_one, assert_same_rows
):
    ranks, alone = found(stage, "critic"), expected("critic")

    assert_same_rows(ranks, alone, "values", atol=1e-5)
    torch.testing.assert_close(ranks[0].weights(), alone.weights(), **ROUNDING)
    assert_like_one(ranks, alone)
    heads = [
        load_file(folder / "critic" / "value_head.safetensors")
        for folder in (two_ranks(stage, "critic"), alone.folder)
    ]
    torch.testing.assert_close(heads[0], heads[1], **ROUNDING)
    assert float(heads[0]["weight"].abs().max()) > 1e-3


@every_stage
@pytest.mark.parametrize("kind", ["float32", "bfloat16", "whole", "whole_bfloat16"])
def test_a_restored_run_goes_on_to_the_bit(two_ranks, found, stage, kind):
    for rank in found(stage, "resuming"):
        assert rank.facts[f"restored {kind}"]
        assert rank.facts[f"went on {kind}"]
    folder = two_ranks(stage, "resuming")
    averages = [
        load_file(folder / f"{name}_{kind}" / "model.safetensors")
        for name in ("straight", "resumed")
    ]
    torch.testing.assert_close(averages[0], averages[1], atol=0, rtol=0)


@stages
def test_a_rank_without_rows_takes_part(found, expected, stage, assert_same_rows):
    ranks, alone = found(stage, "few_rows"), expected("few_rows")

    torch.testing.assert_close(ranks[0].weights(), alone.weights(), **ROUNDING)
    for name in ("before", "statistics", "top"):
        assert_same_rows(ranks, alone, name)
        assert not len(ranks[1].tensors[name])


@stages
def test_a_reference_scores_like_one_rank(found, expected, stage, assert_same_rows):
    ranks, alone = found(stage, "reference"), expected("reference")

    for name in ("logprobs", "again"):
        assert_same_rows(ranks, alone, name, of="logprobs")
    assert ranks[0].facts["checksum"] == alone.facts["checksum"]


@stages
def test_an_optimizer_whose_state_cannot_be_cut_is_refused(found, stage):
    errors = [rank.facts.get("error") for rank in found(stage, "refused")]

    if stage == 0:
        assert errors == [None, None]
    else:
        assert all(
            "Rows needs whole parameters, and it keeps row_var of shape" in error
            for error in errors
        )
