"""Audits: readings against independent arithmetic and their limits."""

import dataclasses

import numpy as np
import pytest
import torch
from tests.plugins.lab.audited import case_of, load, tiny

from rlhf_plugin_lab.audit.changed import (
    with_attention_scale,
    with_rope_theta,
    with_rounded_weights,
    with_tied_head,
)
from rlhf_plugin_lab.audit.forward import Prefix, Reading, Sight, logprobs_of, truncated
from rlhf_plugin_lab.audit.lora import between, merged
from rlhf_plugin_lab.audit.luck import distance_of, repeats_of
from rlhf_plugin_lab.audit.of_models import with_shifted_experts
from rlhf_plugin_lab.audit.precision import PRECISION, without_edges
from rlhf_plugin_lab.audit.search import log_grid, smallest, smallest_whole
from rlhf_plugin_lab.audit.sequences import Recorded


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def sequence():
    ids = np.random.default_rng(0).integers(5, 90, size=14)
    return Recorded(token_ids=ids, action_mask=np.arange(14) >= 6, logprobs={})


def actions(sequence, model, **fault):
    reading = Reading(model=model, temperature=1.0, **fault)
    return logprobs_of(reading, sequence)[sequence.action_mask]


def test_truncated_sets_are_renormalized():
    logprobs = torch.tensor([[0.5, 0.3, 0.15, 0.05]]).double().log()

    for options, expected in (
        ({"top_p": 0.7}, [0.625, 0.375, 0, 0]),  # 0.5 + 0.3 >= 0.7: 0.5/0.8, 0.3/0.8
        ({"top_k": 3}, [10 / 19, 6 / 19, 3 / 19, 0]),  # 0.5/0.95, 0.3/0.95, 0.15/0.95
        ({"min_p": 0.5}, [0.625, 0.375, 0, 0]),  # at least 0.25
        ({"top_k": 2, "top_p": 0.6}, [1, 0, 0, 0]),  # of two tokens the first has 0.625
        ({}, [0.5, 0.3, 0.15, 0.05]),
    ):
        actual = truncated(logprobs, **options).exp()
        torch.testing.assert_close(actual, torch.tensor([expected]).double())


def test_soft_edges_give_a_token_outside_the_same_factor():
    logprobs = torch.tensor([[0.5, 0.3, 0.2]]).double().log()

    actual = truncated(logprobs, top_k=2, soft=True).exp()

    torch.testing.assert_close(actual, torch.tensor([[0.625, 0.375, 0.25]]).double())  # all / 0.8


def test_rounded_weights_are_multiples_of_their_groups_scale(model):
    name = "model.layers.0.mlp.up_proj.weight"
    for group in (None, 16):
        weight = with_rounded_weights(model, 4, group).get_parameter(name)
        own = model.get_parameter(name)
        size = group or own.shape[1]
        scale = own.reshape(-1, size).abs().amax(dim=1, keepdim=True) / 7  # 2 ** 3 - 1

        multiples = weight.reshape(-1, size) / scale

        torch.testing.assert_close(multiples, multiples.round(), atol=1e-4, rtol=0.0)
        assert not torch.equal(weight, own)


def test_the_plain_reading_is_the_models_log_softmax_at_actions(model, sequence):
    with torch.no_grad():
        logits = model(torch.from_numpy(sequence.token_ids)[None]).logits[0].double()
    expected = [float(logits[t - 1].log_softmax(0)[sequence.token_ids[t]]) for t in range(6, 14)]

    actual = logprobs_of(Reading(model=model, temperature=1.0), sequence)

    assert np.isnan(actual[:6]).all()
    np.testing.assert_allclose(actual[6:], expected, atol=PRECISION)


def test_limits_of_readings_are_the_plain_one(model, sequence):
    plain = actions(sequence, model)
    for limit in (
        {"window": 14},
        {"prefix": Prefix(model=model)},
        {"prefix": Prefix(model=model, spare=0)},
        {"logit_cap": 1e6},
        {"keep_prompt": 6},
        {"front": (0,), "fill": 6},
        {"id_offset": model.config.vocab_size},
        {"top_k": model.config.vocab_size},
    ):
        np.testing.assert_allclose(
            actions(sequence, model, **limit), plain, atol=1e-4, err_msg=str(limit)
        )
    for same in (
        with_attention_scale(model, 1.0),
        with_rope_theta(model, model.config.rope_parameters["rope_theta"]),
    ):
        np.testing.assert_allclose(actions(sequence, same), plain, atol=1e-6)


def test_ends_have_no_probability_among_the_first_tokens_of_each_turn(model, sequence):
    """Turns are tokens 6 to 8 and 10 to 13; the first two of each are sampled without token 2."""
    mask = sequence.action_mask.copy()
    mask[9] = False
    turns = dataclasses.replace(sequence, action_mask=mask)
    with torch.no_grad():
        logits = model(torch.from_numpy(turns.token_ids)[None]).logits[0].double()
    end = [float(logits[t - 1].softmax(0)[2]) for t in range(14)]
    expected = logprobs_of(Reading(model=model, temperature=1.0), turns)
    for early in (6, 7, 10, 11):
        expected[early] -= np.log1p(-end[early])

    actual = logprobs_of(Reading(model=model, temperature=1.0, ends=(2,), min_new_tokens=2), turns)

    np.testing.assert_allclose(actual, expected, atol=PRECISION / 10)
    assert np.abs(np.log1p(-np.array(end))).max() > 1e-3


def test_a_mask_says_what_attention_sees(model, sequence):
    """With a window of 1 an action depends on the token before it alone; later tokens move those that see them."""
    other = sequence.token_ids.copy()
    other[12] = 7
    changed = dataclasses.replace(sequence, token_ids=other)

    def moved(**fault):
        return np.abs(actions(sequence, model, **fault) - actions(changed, model, **fault)) > 1e-6

    assert moved(window=1).nonzero()[0].tolist() == [6, 7]  # tokens 12 and 13
    assert moved().nonzero()[0].tolist() == [6, 7]
    assert moved(sight=Sight.PROMPT).nonzero()[0].tolist() == [6, 7]
    assert moved(sight=Sight.ALL).all()


def test_a_jump_of_positions_is_the_forward_at_these_positions(model, sequence):
    positions = torch.tensor([*range(6), *range(9, 17)])
    with torch.no_grad():
        ids = torch.from_numpy(sequence.token_ids)[None]
        mask = torch.ones_like(ids)
        logits = model(ids, attention_mask=mask, position_ids=positions[None]).logits[0].double()
    expected = [float(logits[t - 1].log_softmax(0)[sequence.token_ids[t]]) for t in range(6, 14)]

    np.testing.assert_allclose(actions(sequence, model, position_gap=3), expected, atol=1e-5)


def test_tokens_that_are_not_seen_do_not_matter(model, sequence):
    changed = dataclasses.replace(sequence, token_ids=sequence.token_ids.copy())
    changed.token_ids[5] = 9

    for fault, equal in (({"drop_last": 1}, True), ({"drop_first": 3}, False)):
        same = np.allclose(actions(sequence, model, **fault), actions(changed, model, **fault))
        assert same is equal, fault


def test_changed_models_leave_the_model_as_it_was(model, sequence):
    before = actions(sequence, model)

    for changed in (
        with_rope_theta(model, 50.0),
        with_attention_scale(model, 2.0),
        with_rounded_weights(model, 4),
        with_tied_head(model),
    ):
        assert np.abs(actions(sequence, changed) - before).max() > 1e-3
    np.testing.assert_array_equal(actions(sequence, model), before)


def test_experts_shifted_by_all_of_them_are_the_same(tmp_path, sequence):
    model = tiny(tmp_path, "qwen3_moe")

    same = actions(sequence, with_shifted_experts(model, 4))

    np.testing.assert_array_equal(same, actions(sequence, model))
    assert np.abs(actions(sequence, with_shifted_experts(model, 1)) - same).max() > 1e-3


def test_a_merged_adapter_is_that_of_peft(tmp_path, sequence):
    peft = pytest.importorskip("peft")
    base = tiny(tmp_path / "base")
    options = peft.LoraConfig(r=2, lora_alpha=6, target_modules=["q_proj", "up_proj"])
    adapted = peft.get_peft_model(load(tmp_path / "base"), options)
    for name, weight in adapted.named_parameters():
        if "lora_B" in name:
            weight.data.fill_(0.1)
    adapted.save_pretrained(tmp_path / "adapter")
    expected = actions(sequence, adapted.merge_and_unload())

    model = merged(base, tmp_path / "adapter")

    np.testing.assert_allclose(actions(sequence, model), expected, atol=1e-5)
    np.testing.assert_allclose(actions(sequence, between(base, model, 1.0)), expected, atol=1e-5)
    plain = actions(sequence, base)
    np.testing.assert_allclose(actions(sequence, between(base, model, 0.0)), plain, atol=1e-5)


def test_a_search_finds_values_between_those_of_its_grid():
    grid = log_grid(0.1, 10.0, 5)

    found = smallest(lambda value: abs(value - 0.777), grid, base=0.223)

    assert found == pytest.approx(0.777, rel=1e-5)
    assert smallest(lambda value: 1.0 + value, grid, base=1.0) is None


@pytest.mark.parametrize("value", [1, 2, 31, 33, 48, 77, 127, 128, 300])
def test_a_search_of_whole_numbers_finds_each_of_a_valley(value):
    assert smallest_whole(lambda each: abs(each - value), 300) == value


def test_repeats_are_equal_beginnings_with_equal_actions():
    mask = np.array([False, True, True])
    rows = [([5, 6, 7], [-1.0, -2.0]), ([5, 6, 8], [-1.5, -2.0]), ([5, 9, 7], [-3.0, -2.0])]
    sequences = [
        Recorded(
            token_ids=np.array(row),
            action_mask=mask,
            logprobs={"sampler": np.array([np.nan, *values])},
        )
        for row, values in rows
    ]

    repeats = repeats_of("sampler", sequences)  # 6 behind 5 twice, -1.0 and -1.5; none else

    assert (repeats.count, repeats.spread) == (2, pytest.approx(0.25))


def test_the_distance_of_samples_is_that_of_their_distribution_functions():
    one, other = np.array([1.0, 2.0, 3.0, 4.0]), np.array([3.0, 4.0])

    assert distance_of(one, other) == 0.5  # at 2: 2/4 and 0
    assert distance_of(one, one) == 0.0


def test_actions_at_the_edge_of_top_p_are_left_out_for_bfloat16(model):
    case = case_of(model, answers=(40, 40, 40, 40), top_p=0.4)
    case = dataclasses.replace(case, plain=dataclasses.replace(case.plain, top_p=0.4))
    count = sum(int(np.isfinite(each.logprobs["sampler"]).sum()) for each in case.sequences)

    left = without_edges("sampler", case)

    kept = sum(int(np.isfinite(each.logprobs["sampler"]).sum()) for each in left.sequences)
    assert 0 < kept < count
    assert left.plain.soft_edges
