"""The critic's loss."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from rlhf_core import PluginError
from rlhf_core.batch.metric import merge_metrics
from rlhf_core.contracts import ValueObjective
from rlhf_core.objective import build_objective
from rlhf_testing.errors import has_code

LENGTHS = (2, 1, 3)


@pytest.fixture
def values():
    return torch.tensor([0.5, -1.0, 2.0, 0.0, 0.25, -0.5], dtype=torch.float64).requires_grad_()


@pytest.mark.parametrize("clip", [None, 0.2])
@pytest.mark.parametrize(
    "aggregation", ["token-mean", "seq-mean-token-mean", "seq-mean-token-sum-norm"]
)
def test_it_is_the_sum_over_tokens(batch, plan, part, plugins, values, clip, aggregation):
    objective = build_objective(ValueObjective(value_clip=clip, aggregation=aggregation), plugins)
    _, columns = part(batch, range(3), values, values)

    loss, _ = objective.rollouts(values, columns, plan)
    loss.backward()

    expected, slopes, place = 0.0, [], 0
    for length in LENGTHS:
        weight = {
            "token-mean": 1 / 6,
            "seq-mean-token-mean": 1 / (3 * length),
            "seq-mean-token-sum-norm": 1 / 12,
        }[aggregation]
        for _ in range(length):
            value = values[place].item()
            old, target = (float(batch.columns[name][place]) for name in ("values", "returns"))
            error, slope = (value - target) ** 2 / 2, value - target
            if clip is not None:
                near = old + max(-clip, min(clip, value - old))
                if (near - target) ** 2 / 2 > error:
                    error = (near - target) ** 2 / 2
                    slope = near - target if abs(value - old) < clip else 0.0
            expected += weight * error
            slopes.append(weight * slope)
            place += 1
    assert loss.item() == pytest.approx(expected, rel=1e-6)
    assert values.grad.tolist() == pytest.approx(slopes, rel=1e-6)


def test_it_does_not_depend_on_the_micro_batches(batch, plan, part, plugins, values):
    objective = build_objective(ValueObjective(value_clip=0.2), plugins)
    _, columns = part(batch, range(3), values, values)
    loss, whole = objective.rollouts(values, columns, plan)
    loss.backward()
    expected, parts = values.grad.clone(), []
    values.grad = None

    for rows, span in (([0], slice(0, 2)), ([1, 2], slice(2, 6))):
        _, columns = part(batch, rows, values, values)
        share, metrics = objective.rollouts(values[span], columns, plan)
        share.backward()
        parts.append(metrics)

    torch.testing.assert_close(values.grad, expected, atol=1e-12, rtol=1e-9)
    merged = merge_metrics(parts)
    for name, metric in whole.items():
        assert merged[name].value() == pytest.approx(metric.value(), rel=1e-6)


def test_what_is_logged(batch, plan, part, plugins, values):
    objective = build_objective(ValueObjective(), plugins)
    _, columns = part(batch, range(3), values, values)

    loss, metrics = objective.rollouts(values, columns, plan)

    returns, found = batch.columns["returns"], values.detach().numpy()
    assert metrics["critic/loss"].value() == pytest.approx(loss.item())
    assert metrics["critic/value_mean"].value() == pytest.approx(found.mean())
    assert metrics["critic/return_mean"].value() == pytest.approx(returns.mean(), rel=1e-5)
    assert metrics["critic/abs_error"].value() == pytest.approx(np.abs(found - returns).mean())


def test_a_missing_column_is_named(batch, plan, part, plugins, values):
    batch = replace(batch, columns={"values": batch.columns["values"]})
    _, columns = part(batch, range(3), values, values)

    with pytest.raises(
        PluginError,
        match="'returns'; the batch has values",
        check=has_code("plugin/missing-column"),
    ):
        build_objective(ValueObjective(), plugins).rollouts(values, columns, plan)
