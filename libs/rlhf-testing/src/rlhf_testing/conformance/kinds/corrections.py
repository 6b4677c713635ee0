"""Checks of importance-sampling corrections (``contracts.IsCorrection``)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from rlhf_core.batch.metric import merge_metrics
from rlhf_core.contracts.correction import Correction

from ..comparing import (
    assert_equal,
    assert_finite,
    assert_metrics,
    assert_same_metrics,
    assert_untouched,
    copies,
)
from ..loss_inputs import LossCase, loss_case
from ..subject import Subject, checks_in, of_type


def _correct(subject: Subject, case: LossCase, dtype: torch.dtype = torch.float32) -> Correction:
    old, rollout = (case.columns[name].to(dtype) for name in ("old_logprobs", "rollout_logprobs"))
    result = of_type(subject.make()(old, rollout, case.action_mask), Correction)
    return result


def _effect(result: Correction) -> Tensor:
    """Return the factor of each token's loss: its weight, or 0 where the token is dropped."""
    return torch.where(result.keep, result.weights, 0.0)


def _shifted(case: LossCase, difference: float | Tensor) -> LossCase:
    """Return the case with ``old - rollout = difference`` at every token."""
    return case.with_columns(rollout_logprobs=case.columns["old_logprobs"] - difference)


def check_shapes_and_metrics(subject: Subject) -> None:
    """Non-negative finite weights and a bool to keep, one each per action token; metrics that merge."""
    case = loss_case()
    result = _correct(subject, case)
    shape = case.action_mask.shape
    for name, column in (("weights", result.weights), ("keep", result.keep)):
        assert column.shape == shape, f"{name}: {tuple(column.shape)}, expected {tuple(shape)}"
    assert result.keep.dtype == torch.bool, f"keep is {result.keep.dtype}, expected bool"
    assert result.weights.is_floating_point(), f"weights are {result.weights.dtype}"
    assert_finite(result.weights, "weights, padding included")
    lowest = float(result.weights.min())
    assert lowest >= 0, f"a weight of {lowest:.4g}, expected none below 0"
    assert_metrics(result.metrics, "metrics")


def check_equal_logprobs_change_nothing(subject: Subject) -> None:
    """A sampler that agrees with the trainer gives weight 1 at every token, and every token is kept."""
    case = _shifted(loss_case(), 0.0)
    result, mask = _correct(subject, case), loss_case().action_mask
    assert_equal(result.weights[mask], torch.ones(int(mask.sum())), "weights", atol=1e-6, rtol=0.0)
    dropped = int((~result.keep[mask]).sum())
    assert not dropped, f"{dropped} of {int(mask.sum())} tokens are dropped"


def check_weights_follow_the_ratio(subject: Subject) -> None:
    """If every token is a little likelier for the trainer than for the sampler, no weight is below 1; if every token is
    less likely, no weight is above 1: the ratio is trainer / sampler."""
    mask = loss_case().action_mask
    for difference in (0.02, -0.02):
        weights = _correct(subject, _shifted(loss_case(), difference)).weights[mask]
        wrong = (weights - 1.0) * (1 if difference > 0 else -1) < -1e-6
        assert not wrong.any(), f"old - rollout is {difference}, but weights {weights[wrong][:3]}"


def check_no_gradient(subject: Subject) -> None:
    """Weights carry no gradient, even where the log-probs do: it would be that of another objective."""
    case = loss_case()
    old = case.columns["old_logprobs"].float().requires_grad_()
    rollout = case.columns["rollout_logprobs"].float().requires_grad_()
    result = of_type(subject.make()(old, rollout, case.action_mask), Correction)
    assert not result.weights.requires_grad, "weights carry a gradient"


def check_padding_has_no_effect(subject: Subject) -> None:
    """Neither the amount of padding nor what stands there, nan included, changes a weight or a metric."""
    case = loss_case()
    mask, width = case.action_mask, case.action_mask.shape[1]
    expected, actual = _correct(subject, case), _correct(subject, case.padded(4, float("nan")))
    first, second = _effect(actual)[:, :width][mask], _effect(expected)[mask]
    assert_equal(first, second, "weights with nan padding")
    assert_finite(actual.weights, "weights with nan padding")
    assert_same_metrics(actual.metrics, expected.metrics, "with nan padding")


def check_rows_are_independent(subject: Subject) -> None:
    """Cut into micro-batches, a step has the same weights and metrics."""
    for drift in (0.3, 3.0):
        case = loss_case(drift=drift)
        whole = _effect(_correct(subject, case))
        parts = []
        for rows in ([0, 3], [1], [2, 4]):
            part = case.rows(rows)
            result, mask = _correct(subject, part), part.action_mask
            expected = whole[rows][:, : mask.shape[1]]
            assert_equal(_effect(result)[mask], expected[mask], f"weights of rows {rows} alone")
            parts.append(result.metrics)
        merged, of_whole = merge_metrics(parts), _correct(subject, case).metrics
        assert_same_metrics(merged, of_whole, "merged over micro-batches")


def check_finite_on_extremes(subject: Subject) -> None:
    """Differences of 50 nats per token over 200 tokens, one-token rows and an empty one give finite weights."""
    for lengths, difference in _EXTREMES:
        case = loss_case(lengths)
        result = _correct(subject, _shifted(case, difference))
        assert_finite(result.weights, f"weights at old - rollout = {difference:g}")
        assert_metrics(result.metrics, f"metrics at old - rollout = {difference:g}")


_EXTREMES: Sequence[tuple[tuple[int, ...], float]] = (
    ((200, 1, 0), 50.0),
    ((200, 1, 0), -50.0),
    ((3, 2), 1e4),
    ((3, 2), -1e4),
)


def check_inputs_stay_as_they_are(subject: Subject) -> None:
    """The log-probs are not changed in place."""
    case = loss_case()
    inputs = {name: case.columns[name].float() for name in ("old_logprobs", "rollout_logprobs")}
    inputs["action_mask"] = case.action_mask
    before = copies(inputs)
    subject.make()(*inputs.values())
    assert_untouched(before, inputs)


def check_same_input_same_output(subject: Subject) -> None:
    """Two instances agree to the bit."""
    first, second = (_effect(_correct(subject, loss_case(drift=2.0))) for _ in range(2))
    assert torch.equal(first, second), "the same input gives other weights the second time"


def check_double_precision(subject: Subject) -> None:
    """float64 gives the numbers of float32."""
    case = loss_case()
    mask = case.action_mask
    exact = _effect(_correct(subject, case, torch.float64))[mask]
    assert_equal(_effect(_correct(subject, case))[mask], exact, "float32 against float64")


CHECKS = checks_in(__name__)
