"""Columns of a micro-batch's actions."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from rlhf_core import PluginError
from rlhf_core.contracts import ROW_WEIGHTS, TopTokens
from rlhf_core.objective import ActionColumns, ActionGrid
from rlhf_testing.errors import has_code


def columns_of(batch, rows):
    rows = np.array(rows)
    grid = ActionGrid.of(batch.trajectories.num_actions[rows], torch.device("cpu"))
    return ActionColumns.of(batch, rows, grid)


@pytest.fixture
def counted(batch):
    """Advantages 0 to 5: rows [0, 1], [2] and [3, 4, 5]."""
    return replace(batch, columns={"advantages": np.arange(6, dtype=np.float32)})


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([0, 1, 2], [[0, 1, 0], [2, 0, 0], [3, 4, 5]]),
        ([2, 0], [[3, 4, 5], [0, 1, 0]]),
        ([1], [[2]]),
    ],
)
def test_columns_of_the_given_rows_in_their_order(counted, rows, expected):
    assert columns_of(counted, rows).padded("advantages").tolist() == expected


def test_a_column_that_is_missing_is_none_where_it_is_optional(counted):
    columns = columns_of(counted, [0, 1])

    assert columns.optional("values") is None
    assert columns.optional("advantages") is not None
    with pytest.raises(
        PluginError,
        match=r"'values'; the batch has advantages\. The component",
        check=has_code("plugin/missing-column"),
    ):
        columns.padded("values")


def test_the_teachers_tokens_are_two_columns(counted):
    ids = np.arange(12, dtype=np.int32).reshape(6, 2)
    top = TopTokens(token_ids=ids, logprobs=-ids.astype(np.float32))

    columns = columns_of(replace(counted, teacher_top=top), [1, 0])

    assert columns.teacher_top_ids.tolist() == [[4, 5], [0, 1], [2, 3]]
    assert columns.padded("teacher_top_logprobs").tolist() == [
        [[-4, -5], [0, 0]],
        [[0, -1], [-2, -3]],
    ]
    assert columns_of(counted, [0]).teacher_top_ids is None


def test_prepared_columns_have_the_names_that_the_loss_gave_them(counted):
    marks = np.arange(6, dtype=np.float32) + 10
    both = replace(counted, columns={**counted.columns, "prepared/mark": marks})

    prepared = columns_of(both, [1]).prepared()

    assert {name: column.tolist() for name, column in prepared.items()} == {"mark": [[12]]}


def test_margins_of_pairs_come_with_their_rows(batch):
    rewards = {"margin": np.array([0.5, 0.25, -1.0], dtype=np.float32)}
    with_margins = replace(batch, trajectories=replace(batch.trajectories, rewards=rewards))

    assert columns_of(with_margins, [2, 0]).margins.tolist() == [-1.0, 0.5]
    assert columns_of(batch, [0]).margins is None


def test_weights_of_rows_are_those_of_their_actions(batch):
    weights = np.array([0.4, 0.4, 1.0, 0.6, 0.6, 0.6], dtype=np.float32)
    weighted = replace(batch, columns={ROW_WEIGHTS: weights})

    assert columns_of(weighted, [2, 0]).row_weights.tolist() == weights[[3, 0]].tolist()
    assert columns_of(replace(batch, columns={}), [0]).row_weights is None


def test_rows_without_actions_have_no_weight():
    """A rank that has nothing to do computes with such rows."""
    grid = ActionGrid.of(np.array([0, 0]), torch.device("cpu"))
    columns = ActionColumns(flat={ROW_WEIGHTS: torch.zeros(0)}, grid=grid)

    assert columns.row_weights.tolist() == [0.0, 0.0]
