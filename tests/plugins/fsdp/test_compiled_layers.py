"""Two ranks whose layers are compiled, against one rank of the torch backend whose layers are not."""

import pytest
import torch

pytestmark = [pytest.mark.slow, pytest.mark.matrix]


def test_compiled_layers_train_alike(run_ranks, read_ranks, expected, tmp_path):
    folder = run_ranks("compiled", tmp_path)
    alone = expected("training")

    for rank in read_ranks(folder, "compiled"):
        torch.testing.assert_close(rank.weights(), alone.weights(), atol=1e-5, rtol=1e-4)
