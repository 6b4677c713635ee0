"""Turns that start from the same text share an index."""

from rlhf_core.learning.observations import observations


def test_the_prompt_stands_before_first_turns_and_the_environments_text_before_later_ones(batch_of):
    batch = batch_of({(4, 0): "pqABrsC", (4, 1): "pqXrsYZ"})

    # prompt "pq" is 0 for A, B and X; "rs" is 1 for C, Y and Z
    assert observations(batch).tolist() == [0, 0, 1, 0, 1, 1]


def test_the_same_text_at_another_turn_is_the_same_observation(batch_of):
    batch = batch_of({(4, 0): "pAsBsC", (4, 1): "pXtY"})

    assert observations(batch).tolist() == [0, 1, 1, 0, 2]


def test_the_same_text_for_another_prompt_is_another_observation(batch_of):
    batch = batch_of({(4, 0): "pAB", (5, 0): "pC"})

    assert observations(batch).tolist() == [0, 0, 1]
