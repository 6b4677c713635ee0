"""Assertions that show the numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from rlhf_core.batch.metric import Metric, metric_values


def assert_equal(
    actual: Tensor, expected: Tensor, what: str, *, atol: float = 1e-5, rtol: float = 1e-4
) -> None:
    """Assert that two tensors hold the same numbers, up to float32 rounding; nan equals nothing.

    Raises:
        AssertionError: the tensors differ; the message has the first such place and both numbers.
    """
    assert actual.shape == expected.shape, (
        f"{what}: shape {tuple(actual.shape)}, expected {tuple(expected.shape)}"
    )
    first, second = actual.detach().double(), expected.detach().double()
    close = torch.isclose(first, second, atol=atol, rtol=rtol)
    if bool(close.all()):
        return
    place = tuple(int(index) for index in torch.nonzero(~close)[0])
    raise AssertionError(
        f"{what}: {float(first[place]):.6g} at {place}, expected {float(second[place]):.6g} "
        f"({int((~close).sum())} of {close.numel()} differ)"
    )


def assert_finite(values: Tensor, what: str) -> None:
    """Assert that no number is nan or infinite."""
    values = values.detach()
    bad = torch.nonzero(~torch.isfinite(values))
    if len(bad):
        place = tuple(int(index) for index in bad[0])
        raise AssertionError(f"{what}: {float(values[place])} at {place} ({len(bad)} such values)")


def assert_affine(actual: Tensor, base: Tensor, what: str, *, tolerance: float = 1e-4) -> None:
    """Assert that ``actual = a * base + b`` with one a > 0 and one b, the most that whitening can change.

    Raises:
        AssertionError: no such line fits; the message has the largest deviation from the best line.
    """
    first, second = actual.double(), base.double()
    centered, target = second - second.mean(), first - first.mean()
    spread = centered.square().sum()
    slope = (centered * target).sum() / spread if float(spread) > 1e-12 else torch.tensor(0.0)
    worst = float((target - slope * centered).abs().max())
    assert worst <= tolerance * max(1.0, float(target.abs().max())), (
        f"{what}: deviates by {worst:.4g} from a shift and a scale of the whole batch"
    )
    assert float(slope) > 0 or float(target.abs().max()) <= tolerance, (
        f"{what}: the scale is {float(slope):.4g}, expected a positive one"
    )


def assert_same_metrics(
    actual: Mapping[str, Metric], expected: Mapping[str, Metric], what: str
) -> None:
    """Assert that two sets of metrics have the same names and numbers."""
    first, second = metric_values(actual), metric_values(expected)
    assert first.keys() == second.keys(), (
        f"{what}: metrics {sorted(first)}, expected {sorted(second)}"
    )
    for name, value in second.items():
        tolerance = 1e-5 + 1e-4 * abs(value)
        assert abs(first[name] - value) <= tolerance, (
            f"{what}: {name} is {first[name]:.6g}, expected {value:.6g}"
        )


def assert_metrics(metrics: Mapping[str, Any], what: str) -> None:
    """Assert that all are finite ``Metric`` objects without a gradient, which would keep a graph alive."""
    for name, metric in metrics.items():
        assert isinstance(metric, Metric), (
            f"{what}: {name} is a {type(metric).__name__}, expected Metric"
        )
        for part in (metric.total, metric.count):
            if isinstance(part, Tensor):
                assert not part.requires_grad, f"{what}: metric {name} carries a gradient"
                assert part.numel() == 1, f"{what}: metric {name} has {part.numel()} numbers"
        value = metric.value()
        assert value is None or abs(value) < float("inf"), f"{what}: metric {name} is {value}"


def copies(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return copies of the inputs, for a comparison after a call."""
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


def assert_untouched(before: Mapping[str, Tensor], after: Mapping[str, Tensor]) -> None:
    """Assert that the inputs equal their copies to the bit."""
    for name, old in before.items():
        same = torch.equal(torch.nan_to_num(old), torch.nan_to_num(after[name].detach()))
        assert same, f"the input {name} was changed in place"
