"""Sequences of a row as padded rows of a batch, and back."""

import pytest
import torch

from rlhf_torch.recurrent.padding import Padding


def test_shorter_sequences_are_padded_on_the_right_with_the_first_token():
    rows = torch.arange(1.0, 6.0)[:, None]  # (5, 1): sequences 1 2 3 and 4 5
    padding = Padding(torch.tensor([0, 3, 5]), torch.device("cpu"))

    padded = padding.pad(rows)

    assert padded.tolist() == [[[1.0], [2.0], [3.0]], [[4.0], [5.0], [1.0]]]
    assert torch.equal(padding.unpad(padded), rows)


@pytest.mark.parametrize("offsets", [[0, 2, 4], [0, 4]])
def test_sequences_of_one_length_are_views(offsets):
    rows = torch.arange(4.0)
    padding = Padding(torch.tensor(offsets), torch.device("cpu"))

    padded = padding.pad(rows)

    assert padded.data_ptr() == padding.unpad(padded).data_ptr() == rows.data_ptr()
