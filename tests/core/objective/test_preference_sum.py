"""Several preference losses as one."""

import pytest
import torch

from rlhf_core.batch.metric import Metric, metric_values
from rlhf_core.contracts import AnswerLogprobs, PreferenceInputs, PreferenceResult
from rlhf_core.objective import PreferenceSum, WeightedPreferenceLoss


def scaled(factor, name):
    """A loss of ``factor`` times the difference of the log-probs, whose rewards are the log-probs times the factor."""

    def loss(inputs):
        chosen, rejected = inputs.chosen.policy, inputs.rejected.policy
        return PreferenceResult(
            loss=factor * (rejected - chosen),
            chosen_rewards=factor * chosen.detach(),
            rejected_rewards=factor * rejected.detach(),
            metrics={f"{name}/pairs": Metric(torch.tensor(2.0), 1)},
        )

    return loss


def part(name, factor, weight):
    return WeightedPreferenceLoss(name=name, loss=scaled(factor, name), weight=weight)


@pytest.fixture
def inputs():
    def answers(*logprobs):
        policy = torch.tensor(logprobs, requires_grad=True)
        return AnswerLogprobs(policy=policy, num_tokens=torch.tensor([1, 1]))

    return PreferenceInputs(chosen=answers(-1.0, -2.0), rejected=answers(-4.0, -2.5))


def test_losses_add_up_with_their_weights(inputs):
    result = PreferenceSum([part("one", 1.0, 0.8), part("two", 10.0, 0.5)])(inputs)

    # Differences -3 and -0.5: 0.8 * -3 + 0.5 * -30, and 0.8 * -0.5 + 0.5 * -5.
    torch.testing.assert_close(result.loss, torch.tensor([-17.4, -2.9]))
    (grad,) = torch.autograd.grad(result.loss.sum(), inputs.chosen.policy)
    torch.testing.assert_close(grad, torch.tensor([-5.8, -5.8]))


def test_rewards_are_the_first_loss_s_and_each_part_is_measured_without_its_weight(inputs):
    result = PreferenceSum([part("one", 1.0, 0.8), part("two", 10.0, 0.5)])(inputs)

    assert result.chosen_rewards.tolist() == [-1.0, -2.0]
    assert metric_values(result.metrics) == pytest.approx(
        {
            "one/pairs": 2.0,
            "two/pairs": 2.0,
            "preference/loss_one": -1.75,
            "preference/loss_two": -17.5,
        }
    )


def test_a_single_loss_is_left_as_it_is(inputs):
    only = part("one", 3.0, 1.0)

    result = PreferenceSum([only])(inputs)

    assert result.loss.tolist() == only.loss(inputs).loss.tolist()
    assert list(result.metrics) == ["one/pairs"]


def test_a_weight_counts_for_a_single_loss_too(inputs):
    result = PreferenceSum([part("one", 1.0, 2.0)])(inputs)

    torch.testing.assert_close(result.loss, torch.tensor([-6.0, -1.0]))
