"""Two ranks: every trainable parameter is trained, whatever the dtypes that stand beside each other in a model."""

import pytest
import torch

pytestmark = [pytest.mark.scale, pytest.mark.slow]
# Stages 2 and 3 cut gradients and weights; what they share with the others the scenarios of rows have at each stage.
stages = pytest.mark.parametrize(
    "stage", [*(pytest.param(stage, marks=pytest.mark.matrix) for stage in (0, 1)), 2, 3]
)


@pytest.fixture(scope="module")
def moves(folder_of, read_ranks):
    """What the two ranks found at a stage."""
    return lambda stage: read_ranks(folder_of("moves", stage), stage, "moving")


@stages
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "mixed"])
@pytest.mark.parametrize("role", ["policy", "critic"])
@pytest.mark.parametrize("family", ["llama", "untied"])
def test_every_trainable_parameter_moves(moves, stage, role, dtype, family):
    """The first rank has one micro-batch, the second several. A critic does not use the output head of its model."""
    rank = moves(stage)[0]

    kind = f"{role} {dtype} {family}/weights/"
    distances = {
        name.removeprefix(kind): float(distance)
        for name, distance in rank.tensors.items()
        if name.startswith(kind)
    }
    still = {name for name, distance in distances.items() if distance == 0}

    assert len(distances) > 10
    assert still == ({"lm_head.weight"} if (role, family) == ("critic", "untied") else set())


@stages
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "mixed"])
def test_a_critic_reaches_returns_of_1_in_every_dtype(moves, stage, dtype):
    """Twenty steps of Adam, from values of 0."""
    ranks = moves(stage)

    values = torch.cat([rank.tensors[f"values critic {dtype} llama"] for rank in ranks])

    assert float((values - 1.0).abs().mean()) < 0.2
