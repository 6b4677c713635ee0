"""Columns that a loss computes over the whole step come back action by action."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from rlhf_core import PluginError
from rlhf_core.contracts import TrainBatch
from rlhf_trainer.learning.minibatches import prepare

ROWS = {(0, 0): "pAA", (0, 1): "pAAA", (1, 0): "ppAeA"}
COLUMN = np.arange(1, 8, dtype=np.float32)


@pytest.fixture
def batch(batch_of):
    return TrainBatch(trajectories=batch_of(ROWS), columns={"advantages": COLUMN, "values": COLUMN})


def test_a_loss_sees_rows_and_its_columns_become_the_batchs(batch):
    seen = []

    def twice(columns):
        seen.append(columns)
        return {"doubled": columns.advantages * 2 + ~columns.action_mask * 99}

    prepared = prepare(SimpleNamespace(prepare=twice), batch, seed=7)

    np.testing.assert_array_equal(prepared["prepared/doubled"], COLUMN * 2)
    assert list(prepared) == ["prepared/doubled"]
    (columns,) = seen
    assert columns.seed == 7
    assert columns.action_mask.sum(dim=1).tolist() == [2, 3, 2]
    assert columns.advantages[2].tolist()[:2] == [6.0, 7.0]
    assert columns.old_logprobs is None
    assert columns.rollout_logprobs is None


def test_logprobs_are_there_when_the_step_has_them(batch):
    given = {**batch.columns, "old_logprobs": -COLUMN, "rollout_logprobs": COLUMN / 2}
    both = TrainBatch(trajectories=batch.trajectories, columns=given)

    def difference(columns):
        return {"d": columns.old_logprobs - columns.rollout_logprobs}

    prepared = prepare(SimpleNamespace(prepare=difference), both, seed=0)

    np.testing.assert_array_equal(prepared["prepared/d"], COLUMN * -1.5)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.bool, torch.int64])
def test_every_dtype_becomes_float32(batch, dtype):
    ones = SimpleNamespace(
        prepare=lambda columns: {"one": torch.ones_like(columns.advantages).to(dtype)}
    )

    prepared = prepare(ones, batch, seed=0)

    assert prepared["prepared/one"].dtype == np.float32
    assert prepared["prepared/one"].tolist() == [1.0] * 7


def test_a_column_of_another_shape_is_the_plugins_fault(batch):
    class Sequences:
        def prepare(self, columns):
            return {"weight": columns.advantages.sum(dim=1)}

    with pytest.raises(PluginError) as caught:
        prepare(Sequences(), batch, seed=0)

    assert str(caught.value) == "Sequences prepared 'weight' of shape (3,); expected (3, 3)"
