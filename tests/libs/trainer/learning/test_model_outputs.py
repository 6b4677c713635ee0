"""Model outputs of a batch: only demanded passes are made, and each column is finite where it is used."""

import asyncio
from dataclasses import replace

import numpy as np
import pytest

from rlhf_core import NonFiniteError
from rlhf_trainer.learning.demands import Demands
from rlhf_trainer.learning.model_outputs import ask_models, has_logprobs

NOTHING = Demands(
    trains_unjudged=False,
    learns_unjudged=False,
    critic=False,
    final_values=False,
    reference=False,
    teacher_logprobs=False,
    teacher_top_k=0,
    old_statistics=(),
    rollout_logprobs=False,
    rollout_as_old=False,
    greedy_rewards=False,
    observations=False,
    prepares_step=False,
    supervised=False,
    updates_per_step=1,
)


class Role:
    """Gives one number at every action."""

    def __init__(self, number):
        self.number = number

    async def logprobs(self, batch):
        return np.full(batch.num_actions.sum(), self.number, np.float32)

    async def base_logprobs(self, batch):
        return np.full(batch.num_actions.sum(), 2 * self.number, np.float32)

    async def values(self, batch):
        return np.full(batch.num_actions.sum(), self.number, np.float32)

    async def statistics(self, batch, names):
        return {name: await self.logprobs(batch) for name in names}


def ask(batch, demands, **roles):
    return asyncio.run(ask_models(batch, roles, demands))


def without_logprobs(batch, action):
    """The batch, where the sampler's log-prob of an action is unknown."""
    column = batch.rollout_logprobs.copy()
    column[action] = np.nan
    return replace(batch, tokens=replace(batch.tokens, rollout_logprobs=column))


def test_a_run_that_demands_nothing_asks_no_model(batch):
    outputs = ask(batch, NOTHING)

    assert outputs.columns == {}
    assert (outputs.sum_pi_squared, outputs.final_values, outputs.teacher_top) == (None,) * 3


def test_each_column_is_of_the_model_that_is_named(batch):
    demands = replace(
        NOTHING,
        critic=True,
        reference=True,
        teacher_logprobs=True,
        old_statistics=("logprobs", "sum_pi_squared"),
        rollout_logprobs=True,
    )

    outputs = ask(
        batch, demands, policy=Role(-1), critic=Role(2), reference=Role(-3), teacher=Role(-4)
    )

    assert {name: column.tolist() for name, column in outputs.columns.items()} == {
        "rollout_logprobs": [0.0] * 5,
        "old_logprobs": [-1.0] * 5,
        "ref_logprobs": [-3.0] * 5,
        "teacher_logprobs": [-4.0] * 5,
        "values": [2.0] * 5,
    }
    assert outputs.sum_pi_squared.tolist() == [-1.0] * 5


def test_without_a_reference_the_policys_base_is_asked(batch):
    outputs = ask(batch, replace(NOTHING, reference=True), policy=Role(-1))

    assert outputs.columns["ref_logprobs"].tolist() == [-2.0] * 5


def test_the_samplers_logprobs_stand_in_for_the_old_ones(batch):
    outputs = ask(batch, replace(NOTHING, rollout_as_old=True))

    assert outputs.columns["old_logprobs"] is batch.rollout_logprobs


@pytest.mark.parametrize(("name", "demand"), [("critic", "critic"), ("reference", "reference")])
def test_a_number_that_is_not_finite_is_refused(batch, name, demand):
    with pytest.raises(NonFiniteError):
        ask(batch, replace(NOTHING, **{demand: True}), **{name: Role(np.nan)})


def test_samples_whose_logprobs_nobody_asked_for_are_told_apart(batch):
    silent = without_logprobs(without_logprobs(batch, 3), 4)  # all actions of row 1

    assert has_logprobs(batch).tolist() == [True, True]
    assert has_logprobs(silent).tolist() == [True, False]
    assert ask(silent, NOTHING).columns == {}


def test_one_missing_logprob_among_others_is_refused(batch):
    with pytest.raises(NonFiniteError):
        ask(without_logprobs(batch, 1), NOTHING)
