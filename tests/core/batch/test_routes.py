"""Routes to experts in trajectories and columns."""

import numpy as np
import pytest

from rlhf_core.batch.token_columns import TokenColumns, joined_routes
from rlhf_core.contracts import Trajectory, TrajectoryColumns, Turn, Uid


def row(sample, length, routes):
    return Trajectory(
        uid=Uid(0, 0, sample),
        token_ids=np.arange(length, dtype=np.int32),
        action_mask=np.arange(length) > 0,
        rollout_logprobs=np.zeros(length - 1, dtype=np.float32),
        weight_version=np.zeros(length - 1, dtype=np.int32),
        turns=(Turn(start=1, end=length),),
        routes=routes,
    )


def routes_of(length, first):
    return np.arange(first, first + 2 * length, dtype=np.int8).reshape(length, 2, 1)


def test_rows_keep_their_routes_and_rows_without_any_have_none_known():
    rows = [row(0, 2, routes_of(2, 0)), row(1, 3, None), row(2, 4, routes_of(4, 20))]
    columns = TrajectoryColumns.from_trajectories(rows)

    picked = columns.select(np.array([2, 1])).tokens.read()
    joined = TokenColumns.concatenate([picked, columns.select(np.array([0])).tokens.read()])

    assert picked.routes.dtype == np.int8
    assert picked.routes[:, 0, 0].tolist() == [20, 22, 24, 26, -1, -1, -1]
    assert joined.routes[:, 1, 0].tolist() == [21, 23, 25, 27, -1, -1, -1, 1, 3]
    assert joined.num_bytes == 9 * 7 + 6 * 8  # 4 + 1 + 2 bytes a token, 8 an action
    assert "routes" in columns.arrays()


def test_batches_without_routes_have_no_column():
    columns = TrajectoryColumns.from_trajectories([row(0, 2, None)])

    assert columns.tokens.read().routes is None
    assert "routes" not in columns.arrays()


def test_routes_of_different_models_cannot_be_joined():
    with pytest.raises(ValueError, match=r"\[\(1, 1\), \(2, 1\)\]; expected the same"):
        joined_routes([routes_of(2, 0), np.zeros((2, 1, 1), np.int8)], [2, 2])


def test_routes_of_other_tokens_are_refused():
    with pytest.raises(ValueError, match=r"routes of shape \(3, 2, 1\); expected \(2, layers"):
        row(0, 2, routes_of(3, 0))
