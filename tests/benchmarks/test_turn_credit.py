"""The claim of docs/episodes.md: of equal rewards, those told by turn teach sooner than their sum at the end."""

import pytest
from benchmarks import turn_credit

from rlhf_testing.tiny import write_tiny_model


@pytest.mark.slow
@pytest.mark.matrix
def test_credit_by_turn_learns_sooner_than_credit_at_the_end(tmp_path):
    """40 steps of the page's curve, in which by turn 0.9 of the digits are right, and at the end 0.25 to 0.4."""
    write_tiny_model(
        tmp_path / "model", alphabet="0123456789=", hidden_size=64, num_layers=2, num_heads=4
    )
    last = {}
    for credit in turn_credit.CREDITS:
        turn_credit.train(tmp_path, credit, seed=1, steps=40, turns=8)
        last[credit] = sum(turn_credit.rewards_of(tmp_path / f"{credit}-1")[-5:]) / 5

    assert last["turn"] > 0.7
    assert last["turn"] > last["end"] + 0.3
