"""Scoring: log-probs and values of actions."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from rlhf_core import PluginError
from rlhf_core.contracts import ValueObjective
from rlhf_testing.errors import has_code
from rlhf_testing.tiny import FAMILIES


def unpacked_logprobs(path, trajectories, temperature=1.0):
    """One sequence at a time through the plain model, one action at a time."""
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    out = []
    for row in range(len(trajectories)):
        tokens = torch.from_numpy(trajectories.tokens_of(row).astype(np.int64))
        span = slice(trajectories.token_offsets[row], trajectories.token_offsets[row + 1])
        with torch.no_grad():
            scaled = model(input_ids=tokens[None]).logits[0] / temperature
        out += [
            float(scaled[at - 1].log_softmax(-1)[tokens[at]])
            for at in np.flatnonzero(trajectories.action_mask[span])
        ]
    return np.array(out, dtype=np.float32)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("max_tokens", [16, 40, 10_000])
def test_packed_logprobs_are_those_of_single_sequences(
    start, make_spec, make_trajectories, models, family, max_tokens
):
    trajectories = make_trajectories()
    backend = start(make_spec(models[family], max_tokens_per_micro_batch=max_tokens))

    actual = backend.logprobs(trajectories)

    np.testing.assert_allclose(
        actual, unpacked_logprobs(models[family], trajectories), atol=1e-6, rtol=1e-6
    )


@pytest.mark.parametrize("temperature", [0.5, 2.0])
def test_the_temperature_divides_the_logits(
    start, make_spec, make_trajectories, models, temperature
):
    trajectories = make_trajectories()
    backend = start(make_spec(models["qwen3"], temperature=temperature))

    expected = unpacked_logprobs(models["qwen3"], trajectories, temperature)
    np.testing.assert_allclose(backend.logprobs(trajectories), expected, atol=1e-6, rtol=1e-6)


def test_bfloat16_autocast_is_close_to_float32(start, make_spec, make_trajectories, models):
    trajectories = make_trajectories()
    exact = start(make_spec(models["qwen3"]), compute_dtype="float32").logprobs(trajectories)
    rounded = start(make_spec(models["qwen3"]), compute_dtype="bfloat16").logprobs(trajectories)

    assert 0 < np.abs(rounded - exact).max() < 0.02


def test_a_tokens_logprob_depends_on_nothing_after_it_nor_beside_it(
    start, make_spec, make_trajectories, models
):
    trajectories = make_trajectories()
    backend = start(make_spec(models["gemma3"]))

    whole = backend.logprobs(trajectories)
    rows = np.array([4, 1])
    alone = backend.logprobs(trajectories.select(rows))

    np.testing.assert_allclose(alone, whole[trajectories.action_index(rows)], atol=1e-6, rtol=1e-6)


def test_a_role_without_objective_scores_but_does_not_train(
    start, make_spec, make_batch, make_plan, models
):
    batch = make_batch()
    reference = start(make_spec(models["qwen3"], role="reference", objective=None, optimizer=None))
    policy = start(make_spec(models["qwen3"]))

    np.testing.assert_array_equal(
        reference.logprobs(batch.trajectories), policy.logprobs(batch.trajectories)
    )
    assert not any(p.requires_grad for p in reference.module().parameters())
    with pytest.raises(PluginError, match="reference", check=has_code("training/role-only-scores")):
        reference.train_step(batch, make_plan(batch))


def test_values_are_those_of_the_state_before_each_action(
    start, make_spec, make_trajectories, models
):
    trajectories = make_trajectories()
    spec = make_spec(models["llama"], role="critic", head="value", objective=ValueObjective())
    critic = start(spec)
    head = critic._model.value_head
    torch.nn.init.normal_(head.weight, generator=torch.Generator().manual_seed(0))

    actual = critic.values(trajectories)

    model = AutoModelForCausalLM.from_pretrained(models["llama"], dtype=torch.float32).eval()
    expected = []
    for row in range(len(trajectories)):
        tokens = torch.from_numpy(trajectories.tokens_of(row).astype(np.int64))
        span = slice(trajectories.token_offsets[row], trajectories.token_offsets[row + 1])
        before = np.flatnonzero(trajectories.action_mask[span]) - 1
        with torch.no_grad():
            hidden = model.base_model(input_ids=tokens[None]).last_hidden_state[0]
            expected.append(head(hidden[before])[:, 0].numpy())
    np.testing.assert_allclose(actual, np.concatenate(expected), atol=1e-5, rtol=1e-5)


def test_the_first_values_are_zero(start, make_spec, make_trajectories, models):
    spec = make_spec(models["llama"], role="critic", head="value", objective=ValueObjective())
    trajectories = make_trajectories()

    np.testing.assert_array_equal(start(spec).values(trajectories), 0.0)


def test_a_policy_has_no_values(start, make_spec, make_trajectories, models):
    with pytest.raises(PluginError, check=has_code("model/no-value-head")):
        start(make_spec(models["qwen3"])).values(make_trajectories())


def test_scores_do_not_change_the_global_random_state(start, make_spec, make_trajectories, models):
    before = torch.random.get_rng_state()
    backend = start(replace(make_spec(models["qwen3"]), head="value", objective=ValueObjective()))
    backend.values(make_trajectories())

    assert torch.equal(torch.random.get_rng_state(), before)
