"""A run says how many of its held-out rows it trains on, and does not begin if it trains on all."""

import logging

import numpy as np
import pytest

from rlhf_core import DataError
from rlhf_data.held_out.sides import refuse_trained_rows


def hashes(*numbers):
    return np.array(numbers, dtype=np.uint64)


def test_rows_that_are_trained_on_are_counted_in_one_line_for_each_set(caplog):
    with caplog.at_level(logging.WARNING):
        refuse_trained_rows(
            hashes(1, 2, 3),
            {"some": hashes(3, 4, 3), "none": hashes(5), "all": hashes(1)},
            "eval.data",
        )

    assert [record.getMessage() for record in caplog.records] == [
        "eval.data: the run also trains on 2 of the 3 rows of the held-out set 'some', by what the model reads",
        "eval.data: the run also trains on 1 of the 1 rows of the held-out set 'all', by what the model reads",
    ]


def test_a_run_that_trains_on_all_of_them_is_refused_with_the_way_out():
    with pytest.raises(DataError) as caught:
        refuse_trained_rows(hashes(1, 2, 3), {"a": hashes(3), "b": hashes(1, 1)}, "eval.data")

    said = str(caught.value)
    assert "1 of 1 of 'a', 2 of 2 of 'b'" in said
    for way_out in ("--eval.split", "--eval.fraction 0.1"):
        assert way_out in said
