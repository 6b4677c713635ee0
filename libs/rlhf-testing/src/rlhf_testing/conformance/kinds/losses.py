"""Checks of policy losses (``contracts.PolicyLoss`` and ``contracts.PreparingLoss``)."""

from __future__ import annotations

import torch
from torch import Tensor

from rlhf_core.batch.metric import merge_metrics
from rlhf_core.capabilities import NO_ADVANTAGES, OFF_POLICY
from rlhf_core.contracts.loss import LossInputs, TokenLoss

from ..comparing import (
    assert_equal,
    assert_finite,
    assert_metrics,
    assert_same_metrics,
    assert_untouched,
    copies,
)
from ..loss_inputs import LossCase, equal_policies, loss_case, loss_inputs, prepared, total
from ..reward_batches import tensors_of
from ..subject import Subject, checks_in, of_type, traits


def _inputs(subject: Subject, case: LossCase, **options: object) -> LossInputs:
    return loss_inputs(case, subject.needs, subject.provides, **options)  # type: ignore[arg-type]


def _prepared(subject: Subject, case: LossCase) -> LossCase:
    return prepared(subject.make(), case, subject.provides, subject.needs)


def _gradients(
    subject: Subject, case: LossCase, dtype: torch.dtype = torch.float32
) -> tuple[TokenLoss, Tensor, Tensor | None]:
    """Return the loss, and the gradients of its sum by the policy's log-probs and by those of the top tokens."""
    inputs = _inputs(subject, case, dtype=dtype, gradient=True)
    result = of_type(subject.make()(inputs), TokenLoss)
    summed = total(result, case.action_mask)
    assert summed.requires_grad, "no gradient reaches the policy's log-probs"
    leaves = [inputs.policy_logprobs]
    if inputs.policy_top_logprobs is not None:
        leaves.append(inputs.policy_top_logprobs)
    found = torch.autograd.grad(summed, leaves, allow_unused=True)
    grads = [
        torch.zeros_like(leaf) if grad is None else grad
        for leaf, grad in zip(leaves, found, strict=True)
    ]
    return result, grads[0], grads[1] if len(grads) > 1 else None


def _weighted_with_advantages(subject: Subject) -> bool:
    return NO_ADVANTAGES not in subject.provides


def check_shapes_and_metrics(subject: Subject) -> None:
    """One finite loss per action token, in the type of the log-probs; metrics that merge and carry no gradient."""
    case = _prepared(subject, loss_case())
    inputs = _inputs(subject, case, gradient=True)
    result = of_type(subject.make()(inputs), TokenLoss)
    shape = case.action_mask.shape
    assert result.loss.shape == shape, (
        f"the loss has shape {tuple(result.loss.shape)}, expected {tuple(shape)}: it must not be reduced"
    )
    assert result.loss.dtype == torch.float32, f"{result.loss.dtype}, expected float32"
    assert_finite(result.loss[case.action_mask], "loss")
    assert_metrics(result.metrics, "metrics")


def check_a_gradient_reaches_the_policy(subject: Subject) -> None:
    """Somewhere the loss depends on the policy."""
    _, grad, top = _gradients(subject, _prepared(subject, loss_case()))
    assert grad.any() or (top is not None and top.any()), "all gradients are 0"


@traits(_weighted_with_advantages, usual=True)
def check_zero_advantages_give_no_gradient(subject: Subject) -> None:
    """A loss that is weighted with advantages teaches nothing where they are 0."""
    case = loss_case()
    case = _prepared(
        subject, case.with_columns(advantages=torch.zeros_like(case.columns["advantages"]))
    )
    _, grad, _ = _gradients(subject, case)
    worst = float(grad[case.action_mask].abs().max())
    assert worst <= 1e-7, f"a gradient of {worst:.4g} with all advantages 0"


@traits(_weighted_with_advantages, usual=True)
def check_at_ratio_one_it_is_reinforce(subject: Subject) -> None:
    """With all policies equal, the gradient at each token is minus its advantage."""
    case = _prepared(subject, equal_policies(loss_case()))
    _, grad, _ = _gradients(subject, case)
    expected = torch.where(case.action_mask, -case.columns["advantages"], 0.0)
    assert_equal(grad, expected, "gradient at ratio 1")


@traits(_weighted_with_advantages)
def check_good_actions_become_likelier(subject: Subject) -> None:
    """With all policies equal, a row of good actions gets likelier by a step down the gradient, a bad one rarer."""
    case = equal_policies(loss_case((3, 3)))
    ones = torch.ones_like(case.columns["advantages"])
    good_then_bad = torch.tensor([[1.0], [-1.0]], dtype=torch.float64)
    case = _prepared(subject, case.with_columns(advantages=ones * good_then_bad))
    _, grad, _ = _gradients(subject, case)
    good, bad = grad.sum(dim=1).tolist()
    assert good < 0 < bad, (
        f"gradients of a good and a bad row: {good:.4g}, {bad:.4g}; expected -, +"
    )


def check_padding_has_no_effect(subject: Subject) -> None:
    """Neither the amount of padding nor what stands there, nan included, changes a loss, a gradient or a metric."""
    case = _prepared(subject, loss_case())
    dirty = _prepared(subject, loss_case().padded(3, float("nan"))).padded(0, float("nan"))
    mask, width = case.action_mask, case.action_mask.shape[1]
    expected, grad, top = _gradients(subject, case)
    actual, dirty_grad, dirty_top = _gradients(subject, dirty)
    assert_equal(actual.loss[:, :width][mask], expected.loss[mask], "loss with nan padding")
    assert_equal(dirty_grad[:, :width][mask], grad[mask], "gradient with nan padding")
    assert not dirty_grad[~dirty.action_mask].any(), "a gradient (or nan) at padding"
    if top is not None and dirty_top is not None:
        assert_equal(dirty_top[:, :width][mask], top[mask], "top-token gradient with nan padding")
        assert not dirty_top[~dirty.action_mask].any(), "a gradient of top tokens at padding"
    assert_same_metrics(actual.metrics, expected.metrics, "with nan padding")


def check_rows_are_independent(subject: Subject) -> None:
    """Cut into micro-batches, a step has the same losses, gradients and metrics: none depends on another row.

    Normalizing within a micro-batch, an average over its rows, or a selection among its tokens fails here.
    """
    case = _prepared(subject, loss_case())
    whole, grad, _ = _gradients(subject, case)
    parts = []
    for rows in ([0, 3], [1], [2, 4]):
        part = case.rows(rows)
        result, part_grad, _ = _gradients(subject, part)
        width = part.action_mask.shape[1]
        mask, where = part.action_mask, f"of rows {rows} by themselves"
        assert_equal(result.loss[mask], whole.loss[rows][:, :width][mask], f"loss {where}")
        assert_equal(part_grad[mask], grad[rows][:, :width][mask], f"gradient {where}")
        parts.append(result.metrics)
    assert_same_metrics(merge_metrics(parts), whole.metrics, "merged over micro-batches")


def check_finite_on_extremes(subject: Subject) -> None:
    """Log-ratios of 100 nats, advantages of 10^4, one-token rows and an empty one: loss and gradient stay finite."""
    for drift in (0.0, 200.0):
        for size in (1.0, 1e4):
            case = loss_case((4, 1, 3, 0), drift=drift, advantage=size)
            case = _prepared(subject, case)
            result, grad, top = _gradients(subject, case)
            what = f"at log-ratios up to {drift / 2:g} and advantages up to {size:g}"
            assert_finite(result.loss[case.action_mask], f"loss {what}")
            assert_finite(grad, f"gradient {what}")
            if top is not None:
                assert_finite(top, f"top-token gradient {what}")


def check_far_policies_stay_finite(subject: Subject) -> None:
    """A policy that is 50 or 100 nats above, or below, the old one at every token gives a finite loss and gradient."""
    near = loss_case((5, 1))
    for shift in (50.0, -50.0, 100.0, -100.0):
        far = _prepared(
            subject, near.with_columns(policy_logprobs=near.columns["old_logprobs"] + shift)
        )
        result, grad, _ = _gradients(subject, far)
        assert_finite(result.loss[far.action_mask], f"loss at a log-ratio of {shift:g}")
        assert_finite(grad, f"gradient at a log-ratio of {shift:g}")


def check_inputs_stay_as_they_are(subject: Subject) -> None:
    """No column is changed in place: other terms read them afterwards."""
    inputs = _inputs(subject, _prepared(subject, loss_case()))
    before = copies(tensors_of(inputs))
    subject.make()(inputs)
    assert_untouched(before, tensors_of(inputs))


def check_same_input_same_output(subject: Subject) -> None:
    """Two instances agree to the bit, what they prepare included; the global random state is left alone."""
    before = torch.random.get_rng_state()
    losses = []
    for _ in range(2):
        case = _prepared(subject, loss_case())
        losses.append(subject.make()(_inputs(subject, case)).loss[case.action_mask])
    assert torch.equal(*losses), "the same step gives other losses the second time"
    assert torch.equal(before, torch.random.get_rng_state()), "it drew global random numbers"


def check_double_precision(subject: Subject) -> None:
    """float64 comes back as float64, with the numbers of float32."""
    case = _prepared(subject, loss_case())
    exact, exact_grad, _ = _gradients(subject, case, torch.float64)
    assert exact.loss.dtype == torch.float64, f"{exact.loss.dtype}, expected float64"
    single, grad, _ = _gradients(subject, case)
    mask = case.action_mask
    assert_equal(single.loss[mask], exact.loss[mask], "float32 against float64", atol=1e-4)
    assert_equal(grad, exact_grad, "float32 gradient against float64", atol=1e-4)


@traits(usual=True)
def check_gradient_is_the_derivative(subject: Subject) -> None:
    """The gradient by the policy's log-probs is the slope of the loss, by finite differences in float64.

    Losses that stop a gradient on purpose announce a failure here.
    """
    case = _prepared(subject, loss_case((3, 2), drift=0.1))
    loss, mask = subject.make(), case.action_mask
    _, grad, _ = _gradients(subject, case, torch.float64)
    policy, step = case.columns["policy_logprobs"], 1e-6
    for row, token in torch.nonzero(mask).tolist():
        values = []
        for sign in (1.0, -1.0):
            moved = policy.clone()
            moved[row, token] += sign * step
            moved_case = case.with_columns(policy_logprobs=moved)
            inputs = _inputs(subject, moved_case, dtype=torch.float64)
            values.append(float(total(loss(inputs), mask)))
        slope, found = (values[0] - values[1]) / (2 * step), float(grad[row, token])
        assert abs(slope - found) <= 1e-5 + 1e-4 * abs(slope), (
            f"at row {row}, token {token} the gradient is {found:.6g}, the slope {slope:.6g}"
        )


@traits(_weighted_with_advantages)
def check_older_samples_are_weighed(subject: Subject) -> None:
    """With ``off_policy``, the gradient depends on the log-probs of the old policy, or of the sampler."""
    assert _depends_on_the_writer(subject) or OFF_POLICY not in subject.provides, (
        "it provides 'off_policy', and its gradient is the same whatever old_logprobs and rollout_logprobs are"
    )


@traits(usual=True)
def check_a_ratio_is_declared(subject: Subject) -> None:
    """A gradient that depends on the old policy's log-probs is one that provides ``off_policy``."""
    assert not _depends_on_the_writer(subject) or OFF_POLICY in subject.provides, (
        "its gradient depends on old_logprobs; with provides={'off_policy'} it may train on samples of older policies"
    )


def _depends_on_the_writer(subject: Subject) -> bool:
    near = loss_case(drift=0.02)
    older = {
        name: near.columns[name] - 0.05 * near.columns["entropy"]
        for name in ("old_logprobs", "rollout_logprobs")
    }
    grads = [_gradients(subject, _prepared(subject, near))[1]]
    grads += [
        _gradients(subject, _prepared(subject, near.with_columns(**{name: column})))[1]
        for name, column in older.items()
    ]
    return any(float((grad - grads[0]).abs().max()) > 1e-5 for grad in grads[1:])


@traits(lambda subject: not _weighted_with_advantages(subject))
def check_advantages_have_no_effect(subject: Subject) -> None:
    """With ``no_advantages``, loss and gradient are the same whatever the advantages are, nan included."""
    case = loss_case()
    expected, grad, _ = _gradients(subject, _prepared(subject, case))
    for factor in (0.0, -3.0, float("nan")):
        other = case.with_columns(advantages=case.columns["advantages"] * factor)
        found, other_grad, _ = _gradients(subject, _prepared(subject, other))
        what = f"with {factor} times the advantages"
        mask = case.action_mask
        assert_equal(found.loss[mask], expected.loss[mask], f"loss {what}")
        assert_equal(other_grad[mask], grad[mask], f"gradient {what}")


CHECKS = checks_in(__name__)
