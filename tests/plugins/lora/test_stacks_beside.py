"""Factors of stacked experts beside what else a run has: replayed routes, and other roles on the same base."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.plugins.lora.conftest import trained
from tests.plugins.lora.test_shared_base import CRITIC, beside, held_bytes, same, steps
from tests.plugins.lora.test_training import moved
from tests.plugins.torch.conftest import make_batch, make_trajectories

STACKS = ("experts.gate_up_proj", "experts.down_proj")
OPTIONS = {"rank": 4, "target_parameters": STACKS, "serve": "merged"}


@pytest.fixture
def spec_for(spec_of):
    """The spec of a mixture whose stacks are adapted."""
    return lambda adapter="lora", **changes: spec_of(
        adapter, "qwen3_moe", **({"options": OPTIONS} if adapter else {}), **changes
    )


def routed(rows):
    """The rows with two of four experts for each token but the last of a row, in two layers."""
    columns = rows.tokens.read()
    shape = (len(columns.token_ids), 2, 4)
    routes = np.random.default_rng(7).random(shape).argsort(axis=-1)[..., :2].astype(np.int8)
    routes[rows.token_offsets[1:] - 1] = -1
    return replace(rows, tokens=replace(columns, routes=routes))


def test_replayed_routes_go_to_the_sums(start, spec_for, plain_sgd):
    policies = [start(spec_for(replays_routes=on, **plain_sgd)) for on in (False, True)]
    merged = dict(policies[1]._model.adapter.merged_weights(policies[1]._lm.model))
    whole = start(spec_for(None, replays_routes=True, **plain_sgd), fresh=True)
    whole._lm.model.load_state_dict(merged)
    rows = make_trajectories()

    own, given = policies[0].logprobs(rows), policies[1].logprobs(routed(rows))

    np.testing.assert_allclose(given, whole.logprobs(routed(rows)), atol=1e-5)
    assert np.abs(given - own).max() > 1e-2
    batch = make_batch()
    batches = batch, replace(batch, trajectories=routed(batch.trajectories))
    chosen, followed = (moved(*pair) for pair in zip(policies, batches, strict=True))
    name = "model.layers.0.mlp.experts.lora_B.default.weight"
    assert not torch.allclose(chosen[name], followed[name], atol=1e-4)


def test_policy_and_critic_on_one_base_are_those_of_separate_ones(plugins, start, spec_for):
    specs = spec_for(), spec_for(**CRITIC)
    separate, shared = [start(spec) for spec in specs], beside(plugins, *specs)
    assert held_bytes(*shared) < 0.75 * held_bytes(*separate)

    same(steps(*shared), steps(*separate))

    for one, other in zip(shared, separate, strict=True):
        torch.testing.assert_close(trained(one), trained(other), atol=0, rtol=0)


def test_a_teacher_with_such_an_adapter_stands_beside_the_base(plugins, start, spec_for, tmp_path):
    taught = start(spec_for())
    taught.export(tmp_path)
    specs = spec_for(), spec_for(None, objective=None, role="teacher", model_path=str(tmp_path))

    policy, teacher = beside(plugins, *specs)

    rows = make_trajectories()
    first = policy.logprobs(rows)
    np.testing.assert_allclose(teacher.logprobs(rows), taught.logprobs(rows), atol=1e-5)
    factors = sum(weight.nbytes for weight in trained(taught).values())
    assert held_bytes(policy, teacher) == held_bytes(policy) + factors
    np.testing.assert_array_equal(policy.logprobs(rows), first)
    whole = start(specs[1], fresh=True)
    np.testing.assert_allclose(whole.logprobs(rows), taught.logprobs(rows), atol=1e-5)
