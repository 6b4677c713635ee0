"""What a prompt sampler learns of a group: one number for each episode."""

from rlhf_core.contracts import Uid
from rlhf_testing.conformance.columns import batch_of, trajectory
from rlhf_trainer.rollouts.prompts import prompt_results


def test_an_episode_counts_once_with_the_mean_of_its_sequences_and_turn_rewards():
    rows = [
        # Turns of the kit's trajectories earn 0, 0.25, ...
        trajectory(Uid(2, 7, 0), (3, 2), reward=1.0),
        trajectory(Uid(2, 7, 1, 0), (3,), reward=0.5),
        trajectory(Uid(2, 7, 1, 1), (3, 2), reward=0.5),
        trajectory(Uid(2, 7, 3), (3,), reward=0.0),
    ]

    (result,) = prompt_results([batch_of(rows)], step=4)

    assert (result.index, result.epoch, result.step) == (7, 2, 4)
    # 1 + 0.25; the mean of 0.5 and 0.5 + 0.25; 0. Sample 2 was left out.
    assert result.rewards == (1.25, 0.625, 0.0)


def test_results_come_in_the_order_of_prompts():
    groups = [batch_of([trajectory(Uid(*uid))]) for uid in ((1, 0), (0, 9), (0, 2))]

    found = prompt_results(groups, step=1)

    assert [(result.epoch, result.index) for result in found] == [(0, 2), (0, 9), (1, 0)]
