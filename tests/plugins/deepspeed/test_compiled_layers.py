"""Two ranks whose layers are compiled, against one rank of the torch backend whose layers are not."""

import pytest
import torch

pytestmark = [pytest.mark.scale, pytest.mark.slow]
ROUNDING = {"atol": 1e-5, "rtol": 1e-4}


@pytest.mark.parametrize(
    ("way", "stages"),
    [
        ("compiled rows", (0, 2)),
        pytest.param("compiled tokens", (2,), marks=pytest.mark.matrix),
        pytest.param("compiled matrices", (2,), marks=pytest.mark.matrix),
    ],
)
def test_compiled_layers_train_alike(run_ranks, read_ranks, expected, tmp_path, way, stages):
    folder = run_ranks(way, tmp_path)
    alone = expected("training")

    for stage in stages:
        for rank in read_ranks(folder, stage, "compiled"):
            for name, wanted in alone.tensors.items():
                if name.startswith("weights/"):
                    torch.testing.assert_close(rank.tensors[name], wanted, **ROUNDING)
