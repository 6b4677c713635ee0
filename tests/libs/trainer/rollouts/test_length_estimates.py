"""The longest prompts are started first, as far as their lengths are known."""

from rlhf_core.contracts import Task, Uid
from rlhf_trainer.rollouts.source import LengthEstimates


def tasks(*prompts):
    return [Task(uid=Uid(1, prompt)) for prompt in prompts]


def noted(batch_of):
    estimates = LengthEstimates()
    # Means: prompt 3 has (1 + 3) / 2 = 2, prompt 5 has 4.
    estimates.note(batch_of({(3, 0): "pA", (3, 1): "pAAA", (5, 0): "ppAAAA"}))
    return estimates


def test_longer_ones_come_first_and_unknown_ones_last_in_their_order(batch_of):
    assert noted(batch_of).longest_first(tasks(9, 3, 8, 5)) == [3, 1, 0, 2]


def test_without_estimates_the_order_stays():
    assert LengthEstimates().longest_first(tasks(9, 3, 8)) == [0, 1, 2]


def test_the_last_lengths_count(batch_of):
    estimates = noted(batch_of)
    estimates.note(batch_of({(3, 0): "pAAAAAAAA"}))

    assert estimates.longest_first(tasks(5, 3)) == [1, 0]


def test_they_survive_a_checkpoint(batch_of):
    estimates = noted(batch_of)
    loaded = LengthEstimates()
    loaded.load(estimates.to_json())

    assert estimates.to_json() == {"3": 2, "5": 4}
    assert loaded.longest_first(tasks(9, 3, 8, 5)) == [3, 1, 0, 2]
