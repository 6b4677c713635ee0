"""Metrics of an update: what every rank reports, and what the first one alone does."""

from types import SimpleNamespace

import numpy as np
import pytest

from rlhf_core.contracts import Metric
from rlhf_torch.training.updater import update_metrics


@pytest.mark.parametrize("is_first", [True, False])
def test_a_skipped_update_is_reported_by_the_first_rank_alone(is_first):
    batch = SimpleNamespace(trajectories=SimpleNamespace(num_tokens=np.array([3, 4])))
    update = {"grad_norm": Metric(2.0), "skipped": Metric(1, reduction="sum")}

    found = update_metrics(
        "actor", batch, [{"actor/loss": Metric(1.0)}] * 2, update, None, is_first=is_first
    )

    numbers = {name: metric.value() for name, metric in found.items()}
    assert numbers.pop("train/skipped_updates", None) == (1.0 if is_first else None)
    assert numbers == {
        "actor/loss": 1.0,
        "actor/grad_norm": 2.0,
        "train/tokens": 7.0,
        "train/micro_batches": 2.0,
    }
    assert "skipped" in update
