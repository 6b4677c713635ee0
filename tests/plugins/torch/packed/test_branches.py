"""When attention goes branch by branch; that it is right, ``test_shared_starts.py`` says."""

import numpy as np
import pytest

from rlhf_torch.rows.prompt_sharing import COST_OF_A_BRANCH, branches_are_cheaper


@pytest.mark.parametrize(
    ("lengths", "starts", "is_cheaper"),
    [
        # 100^2 / 2 + 10 * 110 pairs beside two whole sequences of 110: calls cost more than the rest
        ([100, 110], [0, 100], False),
        # 1000^2 / 2 + 7 * 100 * 1000 = 1.2 million pairs and 8 calls beside 8 * 1000^2 / 2 = 4 million
        ([1000] * 8, [0] + [900] * 7, True),
        # hidden pairs are computed too: half of each sequence takes as long as whole ones without a mask
        ([1000] * 8, [0] + [500] * 7, False),
        # equal sequences have no branch but the first
        ([300] * 8, [0] + [300] * 7, True),
    ],
)
def test_the_cheaper_way_by_hand(lengths, starts, is_cheaper):
    assert branches_are_cheaper(np.array(lengths), np.array(starts)) is is_cheaper


def test_many_short_branches_are_not_worth_their_calls():
    longest = int((2 * COST_OF_A_BRANCH) ** 0.5)  # a whole sequence costs as much as a call

    assert not branches_are_cheaper(np.full(50, longest), np.array([0] + [longest - 1] * 49))
