"""An estimator that leaves the KL penalty out is noticed before the first update, and no other is."""

import pytest
import torch

from rlhf_core import CapabilityError
from rlhf_core import plugins as plugin_loader
from rlhf_core.contracts import Advantages
from rlhf_core.math import reward_to_go, rewards_by_turn, whiten
from rlhf_testing.conformance.reward_batches import Row, mixed_rows, reward_batch
from rlhf_testing.errors import has_code
from rlhf_trainer.learning.advantages import PenaltyChecked

ESTIMATORS = list(plugin_loader.load("").registries["rlhf_advantage_estimators"])


def batch_of(rows=None, needs=frozenset(), coef=0.0):
    return reward_batch(rows or mixed_rows(), needs, kl=coef)


def of_reward_alone(batch):
    return Advantages(advantages=batch.rewards[:, None] * batch.action_mask)


def of_turns_without_the_penalty(batch):
    """``rewards_by_turn`` reads the penalty, in order to leave it out: what is read says nothing."""
    return Advantages(advantages=rewards_by_turn(batch).gather(1, batch.turn) * batch.action_mask)


def whitened_without_the_penalty(batch):
    values = whiten(of_reward_alone(batch).advantages, batch.action_mask)
    return Advantages(advantages=values)


def to_go(batch):
    return Advantages(advantages=reward_to_go(batch.token_rewards, batch.action_mask))


@pytest.mark.parametrize(
    "estimator", [of_reward_alone, of_turns_without_the_penalty, whitened_without_the_penalty]
)
@pytest.mark.parametrize("scale", [1.0, 1e4])
def test_an_estimator_that_leaves_the_penalty_out_is_refused(estimator, scale):
    rows = [Row(key=key, turns=(2, 2), score=scale * key, group=0) for key in range(4)]

    with pytest.raises(
        CapabilityError,
        match=r"--estimator mine.*\n.*--algo.kl.mode loss",
        check=has_code("config/penalty-without-effect"),
    ):
        PenaltyChecked(lambda: estimator, "--estimator mine")(batch_of(rows))


@pytest.mark.parametrize("estimator", [of_reward_alone, to_go])
def test_without_a_penalty_nothing_is_asked(estimator):
    batch = reward_batch(mixed_rows(), frozenset())
    assert batch.kl_penalty is None

    result = PenaltyChecked(lambda: estimator, "mine")(batch)

    assert torch.equal(result.advantages, estimator(batch).advantages)


def test_a_batch_without_any_advantage_proves_nothing():
    """Nothing is learned from it, so the question waits for one that has an advantage."""
    checked = PenaltyChecked(lambda: of_reward_alone, "--estimator mine")
    nothing = [Row(key=key, turns=(2,), score=0.0) for key in range(4)]

    assert not checked(batch_of(nothing)).advantages.any()
    with pytest.raises(CapabilityError):
        checked(batch_of())


def test_the_estimator_that_trains_sees_each_batch_once():
    made = []

    def make():
        seen = []
        made.append(seen)

        def estimator(batch):
            seen.append(batch)
            return to_go(batch)

        return estimator

    checked = PenaltyChecked(make, "mine")
    batches = [batch_of(), batch_of()]
    for batch in batches:
        checked(batch)

    assert [len(seen) for seen in made] == [2, 1, 1]
    assert made[0] == batches


@pytest.mark.parametrize("scale", [1.0, 1e-4, 1e4])
@pytest.mark.parametrize("entry", ESTIMATORS, ids=lambda entry: entry.name)
def test_every_estimator_of_this_environment_adds_the_penalty(entry, scale):
    """Whatever the scale of the rewards: none is refused wrongly."""
    rows = [
        Row(key=key, turns=(1 + key % 3,), score=scale * (key % 4 == 0), group=key // 4)
        for key in range(8)
    ]
    batch = batch_of(rows, entry.component.needs)

    result = PenaltyChecked(entry.build, entry.name)(batch)

    assert result.advantages.shape == batch.action_mask.shape
