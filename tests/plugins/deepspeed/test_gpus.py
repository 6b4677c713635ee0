"""Two ranks on GPUs, over NCCL, against one rank of torch on a CPU, at every stage."""

import pytest
import torch

pytestmark = [
    pytest.mark.scale,
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs"),
]
ATOL = {"muon": 1e-3}
"""Newton-Schulz in bfloat16 magnifies rounding; everything else is float32."""


@pytest.fixture(scope="module")
def on_gpus(run_ranks, tmp_path_factory):
    return run_ranks("rows on GPUs", tmp_path_factory.mktemp("gpus"))


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
@pytest.mark.parametrize("name", ["training", "resting", "whole", "whole_on_host", "muon"])
def test_two_gpus_train_like_one_rank(
    on_gpus, read_ranks, expected, assert_same_metrics, stage, name
):
    ranks, alone = read_ranks(on_gpus, stage, name), expected(name)

    atol = ATOL.get(name, 1e-5)
    for rank in ranks:
        for key in (key for key in alone.tensors if key.startswith("weights/")):
            torch.testing.assert_close(rank.tensors[key], alone.tensors[key], atol=atol, rtol=0)
    assert_same_metrics(ranks, alone, atol=max(atol, 1e-4), more_passes=True)


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_a_run_restored_on_gpus_goes_on_to_the_bit(on_gpus, read_ranks, scenarios, stage):
    for rank in read_ranks(on_gpus, stage, "resuming"):
        for kind in scenarios.KINDS:
            assert rank.facts[f"restored {kind}"]
            assert rank.facts[f"went on {kind}"]
