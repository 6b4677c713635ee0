"""Checks of preference losses (``contracts.PreferenceLoss``)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import torch
from torch import Tensor

from rlhf_core.batch.metric import merge_metrics
from rlhf_core.capabilities import UNPAIRED_ANSWERS
from rlhf_core.contracts.preference import PreferenceInputs, PreferenceResult

from ..comparing import (
    assert_equal,
    assert_finite,
    assert_metrics,
    assert_same_metrics,
    assert_untouched,
    copies,
)
from ..preference_inputs import (
    AnswerCase,
    PreferenceCase,
    at_the_start,
    preference_case,
    preference_inputs,
    tensors_by_name,
)
from ..subject import Subject, checks_in, of_type, traits

KINDS = ("chosen", "rejected")


def _is_paired(subject: Subject) -> bool:
    return UNPAIRED_ANSWERS not in subject.provides


def _case(subject: Subject) -> PreferenceCase:
    return preference_case(paired=_is_paired(subject))


def _result(
    subject: Subject, case: PreferenceCase, dtype: torch.dtype = torch.float32
) -> PreferenceResult:
    inputs = preference_inputs(case, subject.needs, dtype=dtype)
    result = of_type(subject.make()(inputs), PreferenceResult)
    return result


def _gradients(
    subject: Subject, case: PreferenceCase, dtype: torch.dtype = torch.float32
) -> tuple[PreferenceResult, dict[str, Tensor]]:
    """Return the result, and the gradients of the sum of its losses by the policy's log-probs of each kind."""
    inputs = preference_inputs(case, subject.needs, dtype=dtype, gradient=True)
    result = of_type(subject.make()(inputs), PreferenceResult)
    return result, _by_kind(inputs, result.loss.sum())


def _by_kind(inputs: PreferenceInputs, loss: Tensor) -> dict[str, Tensor]:
    assert loss.requires_grad, "no gradient reaches the policy's log-probs"
    leaves = [inputs.chosen.policy, inputs.rejected.policy]
    found = torch.autograd.grad(loss, leaves, allow_unused=True, retain_graph=True)
    return {
        kind: torch.zeros_like(leaf) if grad is None else grad
        for kind, leaf, grad in zip(KINDS, leaves, found, strict=True)
    }


def _rewards(result: PreferenceResult) -> dict[str, Tensor]:
    return {"chosen": result.chosen_rewards, "rejected": result.rejected_rewards}


def _assert_same(
    actual: PreferenceResult, expected: PreferenceResult, what: str, *, atol: float = 1e-5
) -> None:
    assert_equal(actual.loss, expected.loss, f"loss {what}", atol=atol)
    for kind, rewards in _rewards(expected).items():
        assert_equal(_rewards(actual)[kind], rewards, f"rewards ({kind}) {what}", atol=atol)


def _has_reference(subject: Subject) -> bool:
    return "ref_logprobs" in subject.needs


def _has_beta(subject: Subject) -> bool:
    return subject.origin is not None and isinstance(subject.config.model_dump().get("beta"), float)


def check_shapes_and_metrics(subject: Subject) -> None:
    """One finite loss per pair, or per answer without a partner, and one reward per answer; metrics that merge."""
    case = _case(subject)
    result, _ = _gradients(subject, case)
    num_chosen, num_rejected = len(case.chosen.policy), len(case.rejected.policy)
    num_units = num_chosen if _is_paired(subject) else num_chosen + num_rejected
    columns = {
        "loss": (result.loss, num_units),
        "chosen_rewards": (result.chosen_rewards, num_chosen),
        "rejected_rewards": (result.rejected_rewards, num_rejected),
    }
    for name, (column, length) in columns.items():
        assert column.shape == (length,), (
            f"{name}: shape {tuple(column.shape)}, expected ({length},)"
        )
        assert column.dtype == torch.float32, f"{name}: {column.dtype}, expected float32"
        assert_finite(column, name)
    assert_metrics(result.metrics, "metrics")


def check_chosen_answers_become_likelier(subject: Subject) -> None:
    """Before any update, a step down the gradient makes each chosen answer likelier and each rejected one rarer."""
    _, grads = _gradients(subject, at_the_start(_case(subject)))
    chosen, rejected = float(grads["chosen"].max()), float(grads["rejected"].min())
    assert chosen < 0, f"the gradient to a chosen answer is {chosen:.4g}, expected < 0"
    assert rejected > 0, f"the gradient to a rejected answer is {rejected:.4g}, expected > 0"


def check_a_unit_is_its_own_answers(subject: Subject) -> None:
    """The loss of a pair, or of an answer without a partner, has a gradient to its own answers and to no others."""
    case = _case(subject)
    inputs = preference_inputs(case, subject.needs, gradient=True)
    loss = subject.make()(inputs).loss
    num_chosen = len(case.chosen.policy)
    for unit in range(len(loss)):
        if _is_paired(subject):
            own = {"chosen": {unit}, "rejected": {unit}}
        else:
            own = {"chosen": {unit}, "rejected": {unit - num_chosen}}
        for kind, grad in _by_kind(inputs, loss[unit]).items():
            others = {int(row) for row in torch.nonzero(grad)} - own[kind]
            assert not others, f"the loss of unit {unit} has a gradient to {kind} {sorted(others)}"


def check_rows_are_independent(subject: Subject) -> None:
    """Cut into micro-batches, in another order, a step has the same losses, rewards, gradients and metrics."""
    case = _case(subject)
    whole, grads = _gradients(subject, case)
    parts = []
    for chosen, rejected in _PARTS[_is_paired(subject)]:
        result, part_grads = _gradients(subject, case.rows(chosen, rejected))
        where = f"of chosen {chosen} and rejected {rejected} by themselves"
        last = [] if _is_paired(subject) else [len(case.chosen.policy) + row for row in rejected]
        assert_equal(result.loss, whole.loss[chosen + last], f"loss {where}")
        for kind, rows in (("chosen", chosen), ("rejected", rejected)):
            assert_equal(part_grads[kind], grads[kind][rows], f"gradient to {kind} {where}")
            rewards = _rewards(whole)[kind][rows]
            assert_equal(_rewards(result)[kind], rewards, f"rewards ({kind}) {where}")
        parts.append(result.metrics)
    assert_same_metrics(merge_metrics(parts), whole.metrics, "merged over micro-batches")


_PARTS = {
    True: (([3, 0], [3, 0]), ([1], [1]), ([4, 2], [4, 2])),
    False: (([3, 0], [1]), ([4, 1, 2], []), ([], [2, 0])),
}
"""Rows of chosen and of rejected answers in each micro-batch, by whether answers come in pairs."""


def check_finite_on_extremes(subject: Subject) -> None:
    """Log-ratios of 1000 nats either way, answers of one token and certain ones: loss and gradient stay finite."""
    for what, case in _extremes():
        result, grads = _gradients(subject, case)
        assert_finite(result.loss, f"loss {what}")
        for kind in KINDS:
            assert_finite(_rewards(result)[kind], f"rewards ({kind}) {what}")
            assert_finite(grads[kind], f"gradient to {kind} {what}")


def _extremes() -> Iterator[tuple[str, PreferenceCase]]:
    certain, likely, unlikely = 0.0, -20.0, -1020.0
    num_tokens = torch.tensor([1, 40])

    def answers(policy: float, reference: float) -> AnswerCase:
        policies, references = (
            torch.full((2,), value, dtype=torch.float64) for value in (policy, reference)
        )
        return AnswerCase(policy=policies, reference=references, num_tokens=num_tokens)

    logprobs = ((likely, unlikely), (unlikely, likely), (certain, likely), (certain, certain))
    for chosen, rejected in product(logprobs, repeat=2):
        case = PreferenceCase(chosen=answers(*chosen), rejected=answers(*rejected))
        for mismatched_kl in (1000.0, -1000.0):
            what = f"at log-probs (policy, reference) {chosen} chosen and {rejected} rejected"
            yield what, replace(case, mismatched_kl=mismatched_kl)


def check_only_the_policy_gets_a_gradient(subject: Subject) -> None:
    """Rewards have no gradient, and none flows to the reference or the mismatched KL, also where these carry one."""
    inputs = preference_inputs(_case(subject), subject.needs, all_gradients=True)
    result = of_type(subject.make()(inputs), PreferenceResult)
    for kind, rewards in _rewards(result).items():
        assert not rewards.requires_grad, f"the rewards of {kind} answers carry a gradient"
    fixed = {
        name: tensor
        for name, tensor in tensors_by_name(inputs).items()
        if tensor.requires_grad and not name.endswith(".policy")
    }
    if not fixed:
        return
    grads = torch.autograd.grad(result.loss.sum(), list(fixed.values()), allow_unused=True)
    for name, grad in zip(fixed, grads, strict=True):
        assert grad is None or not grad.any(), (
            f"a gradient of up to {float(grad.abs().max()):.4g} flows to {name}"
        )


def check_rewards_rise_with_the_policy(subject: Subject) -> None:
    """Each answer's reward rises with its log-prob; with a reference it is 0 before any update."""
    case = at_the_start(_case(subject))
    before = _rewards(_result(subject, case))
    likelier = case.changed(lambda answers: replace(answers, policy=answers.policy + 0.1))
    after = _rewards(_result(subject, likelier))
    for kind in KINDS:
        least = float((after[kind] - before[kind]).min())
        assert least > 0, f"a {kind} answer that is 0.1 nats likelier has a reward {least:.4g} more"
        if _has_reference(subject):
            assert_equal(before[kind], torch.zeros_like(before[kind]), f"rewards ({kind})")


def check_inputs_stay_as_they_are(subject: Subject) -> None:
    """No column is changed in place: the caller reads them afterwards."""
    inputs = preference_inputs(_case(subject), subject.needs)
    before = copies(tensors_by_name(inputs))
    subject.make()(inputs)
    assert_untouched(before, tensors_by_name(inputs))


def check_same_input_same_output(subject: Subject) -> None:
    """Two instances agree to the bit, and the global random state is left alone."""
    before = torch.random.get_rng_state()
    first, second = (_result(subject, _case(subject)).loss for _ in range(2))
    assert torch.equal(first, second), "the same input gives other losses the second time"
    assert torch.equal(before, torch.random.get_rng_state()), "it drew global random numbers"


def check_double_precision(subject: Subject) -> None:
    """float64 comes back as float64, with the numbers of float32."""
    case = _case(subject)
    exact, exact_grads = _gradients(subject, case, torch.float64)
    for name, column in {"loss": exact.loss, **_rewards(exact)}.items():
        assert column.dtype == torch.float64, f"{name}: {column.dtype}, expected float64"
    single, grads = _gradients(subject, case)
    _assert_same(single, exact, "in float32 against float64", atol=1e-4)
    for kind in KINDS:
        assert_equal(grads[kind], exact_grads[kind], f"float32 gradient to {kind}", atol=1e-4)


@traits(usual=True)
def check_gradient_is_the_derivative(subject: Subject) -> None:
    """The gradient by the policy's log-probs is the slope of the loss, by finite differences in float64.

    Losses that stop a gradient on purpose announce a failure here.
    """
    case, step = _case(subject), 1e-6
    _, grads = _gradients(subject, case, torch.float64)
    for kind in KINDS:
        for row in range(len(grads[kind])):
            up, down = (
                float(_result(subject, _moved(case, kind, row, nats), torch.float64).loss.sum())
                for nats in (step, -step)
            )
            slope, found = (up - down) / (2 * step), float(grads[kind][row])
            assert abs(slope - found) <= 1e-5 + 1e-4 * abs(slope), (
                f"{kind} answer {row}: the gradient is {found:.6g}, the slope {slope:.6g}"
            )


def _moved(case: PreferenceCase, kind: str, row: int, nats: float) -> PreferenceCase:
    """Return the case with the log-prob of one answer moved."""

    def move(answers: AnswerCase) -> AnswerCase:
        here = torch.arange(len(answers.policy)) == row
        return replace(answers, policy=answers.policy + torch.where(here, nats, 0.0))

    if kind == "chosen":
        return replace(case, chosen=move(case.chosen))
    return replace(case, rejected=move(case.rejected))


@traits(_has_reference, usual=True)
def check_only_log_ratios_count(subject: Subject) -> None:
    """An answer that policy and reference both find less likely by as much has the same loss and reward."""
    case = _case(subject)
    less_likely = case.changed(
        lambda answers: replace(
            answers,
            policy=answers.policy - answers.num_tokens,
            reference=answers.reference - answers.num_tokens,
        )
    )
    actual = _result(subject, less_likely, torch.float64)
    _assert_same(actual, _result(subject, case, torch.float64), "of less likely answers")


@traits(usual=True)
def check_lengths_do_not_count(subject: Subject) -> None:
    """The number of an answer's tokens, with the same sum of log-probs, changes nothing."""
    case = _case(subject)
    longer = case.changed(lambda answers: replace(answers, num_tokens=2 * answers.num_tokens + 1))
    _assert_same(_result(subject, longer), _result(subject, case), "of answers of more tokens")


@traits(_has_beta, usual=True)
def check_rewards_scale_with_beta(subject: Subject) -> None:
    """With half the ``beta``, rewards are half as large."""
    case = _case(subject)
    whole, half = (_rewards(_result(each, case)) for each in (subject, _with_half_beta(subject)))
    for kind in KINDS:
        assert_equal(half[kind], whole[kind] / 2, f"rewards ({kind}) with half the beta")


@traits(_has_beta, usual=True)
def check_loss_is_of_the_rewards(subject: Subject) -> None:
    """With half the ``beta`` and log-ratios twice as large, rewards are the same, and so is the loss."""
    case = _case(subject)
    actual = _result(_with_half_beta(subject), _doubled(case, _has_reference(subject)))
    _assert_same(actual, _result(subject, case), "with half the beta and twice the log-ratios")


def _with_half_beta(subject: Subject) -> Subject:
    return subject.with_options(beta=subject.config.model_dump()["beta"] / 2)


def _doubled(case: PreferenceCase, has_reference: bool) -> PreferenceCase:
    """Return the case with twice the log-ratios, or log-probs where there is no reference."""

    def double(answers: AnswerCase) -> AnswerCase:
        around = answers.reference if has_reference else torch.zeros_like(answers.policy)
        return replace(answers, policy=2 * answers.policy - around)

    return replace(case.changed(double), mismatched_kl=2 * case.mismatched_kl)


CHECKS = checks_in(__name__)
