"""The formulas of the preference losses, written out one number at a time: a check beyond the kit.

A loss of another formula may keep every promise of its contract, so the kit cannot tell that it is another one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from rlhf_core.capabilities import UNPAIRED_ANSWERS
from rlhf_testing.conformance import Check, Subject
from rlhf_testing.conformance.preference_inputs import (
    AnswerCase,
    PreferenceCase,
    preference_case,
    preference_inputs,
)


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer."""

    policy: float
    reference: float
    num_tokens: int

    @property
    def log_ratio(self) -> float:
        return self.policy - self.reference

    @property
    def mean(self) -> float:
        """Log-prob per token under the policy."""
        return self.policy / self.num_tokens


def sigmoid(x: float) -> float:
    return 1.0 / (1.0 + math.exp(-x))


def slope(answer: Answer, f_divergence: str, alpha: float | None) -> float:
    """f' of the ratio of the answer's probabilities."""
    ratio = math.exp(answer.log_ratio)
    if f_divergence == "js_divergence":
        return math.log(2.0 * ratio / (1.0 + ratio))
    if f_divergence == "reverse_kl":
        return math.log(ratio)
    power = alpha if f_divergence == "alpha_divergence" else 1.0
    assert power is not None
    return (1.0 - ratio**-power) / power


def dpo(
    chosen: Answer,
    rejected: Answer,
    beta: float,
    f_divergence: str = "reverse_kl",
    alpha: float | None = None,
) -> float:
    scores = [slope(answer, f_divergence, alpha) for answer in (chosen, rejected)]
    return -math.log(sigmoid(beta * (scores[0] - scores[1])))


def apo_zero(chosen: Answer, rejected: Answer, beta: float) -> float:
    return 1.0 - sigmoid(beta * chosen.log_ratio) + sigmoid(beta * rejected.log_ratio)


def apo_down(chosen: Answer, rejected: Answer, beta: float) -> float:
    margin = beta * (chosen.log_ratio - rejected.log_ratio)
    return sigmoid(beta * chosen.log_ratio) + 1.0 - sigmoid(margin)


def bco(chosen: Answer, rejected: Answer, beta: float) -> float:
    return -math.log(sigmoid(beta * chosen.log_ratio)) - math.log(
        1.0 - sigmoid(beta * rejected.log_ratio)
    )


def cdpo(chosen: Answer, rejected: Answer, beta: float, label_smoothing: float) -> float:
    right, wrong = dpo(chosen, rejected, beta), dpo(rejected, chosen, beta)
    return right - label_smoothing * (right - wrong)


def robust(chosen: Answer, rejected: Answer, beta: float, label_smoothing: float) -> float:
    right, wrong = dpo(chosen, rejected, beta), dpo(rejected, chosen, beta)
    return right + label_smoothing * (right - wrong) / (1.0 - 2.0 * label_smoothing)


def ipo(chosen: Answer, rejected: Answer, beta: float, length_normalized: bool) -> float:
    lengths = (chosen.num_tokens, rejected.num_tokens) if length_normalized else (1, 1)
    distance = chosen.log_ratio / lengths[0] - rejected.log_ratio / lengths[1]
    return (distance - 0.5 / beta) ** 2


def hinge(chosen: Answer, rejected: Answer, beta: float) -> float:
    return max(0.0, 1.0 - beta * (chosen.log_ratio - rejected.log_ratio))


def orpo(chosen: Answer, rejected: Answer, lambda_: float) -> float:
    odds = [math.exp(answer.mean) / (1.0 - math.exp(answer.mean)) for answer in (chosen, rejected)]
    return -chosen.mean + lambda_ * math.log(1.0 + odds[1] / odds[0])


def simpo(chosen: Answer, rejected: Answer, beta: float, gamma: float) -> float:
    return -math.log(sigmoid(beta * (chosen.mean - rejected.mean) - gamma))


PAIRS: dict[str, Callable[..., float]] = {
    each.__name__: each
    for each in (dpo, apo_zero, apo_down, bco, cdpo, robust, ipo, hinge, orpo, simpo)
}
"""Loss of a pair, by the name of the component; its options are further arguments."""


def kto(
    chosen: list[Answer], rejected: list[Answer], mismatched_kl: float, options: dict[str, Any]
) -> list[float]:
    point, beta = max(mismatched_kl, 0.0), options["beta"]
    return [
        options["desirable_weight"] * (1.0 - sigmoid(beta * (answer.log_ratio - point)))
        for answer in chosen
    ] + [
        options["undesirable_weight"] * (1.0 - sigmoid(beta * (point - answer.log_ratio)))
        for answer in rejected
    ]


def logistic(difference: float, label_smoothing: float) -> float:
    right, wrong = (-math.log(sigmoid(sign * difference)) for sign in (1, -1))
    return (1.0 - label_smoothing) * right + label_smoothing * wrong


def aot(
    chosen: list[Answer], rejected: list[Answer], beta: float, label_smoothing: float
) -> list[float]:
    pairs = list(zip(chosen, rejected, strict=True))
    margins = [better.policy - worse.policy for better, worse in pairs]
    references = sorted(better.reference - worse.reference for better, worse in pairs)
    return [
        logistic(beta * (margin - references[sorted(margins).index(margin)]), label_smoothing)
        for margin in margins
    ]


def aot_unpaired(
    chosen: list[Answer], rejected: list[Answer], beta: float, label_smoothing: float
) -> list[float]:
    gains, losses = ([answer.log_ratio for answer in kind] for kind in (chosen, rejected))
    matches = [
        logistic(beta * (gain - loss), label_smoothing)
        for gain, loss in zip(sorted(gains), sorted(losses), strict=True)
    ]
    return [
        (matches[sorted(gains).index(gain)] + matches[sorted(losses).index(loss)]) / 2
        for gain, loss in zip(gains, losses, strict=True)
    ]


UPDATES: dict[str, Callable[..., list[float]]] = {
    each.__name__: each for each in (aot, aot_unpaired)
}
"""Losses of all pairs of an update, by the name of the component."""


def answers_of(case: AnswerCase) -> list[Answer]:
    columns = (case.policy.tolist(), case.reference.tolist(), case.num_tokens.tolist())
    return [Answer(*row) for row in zip(*columns, strict=True)]


def written_out(name: str, options: dict[str, Any], case: PreferenceCase) -> list[float]:
    """Return the loss of each unit."""
    chosen, rejected = answers_of(case.chosen), answers_of(case.rejected)
    if name == "kto":
        return kto(chosen, rejected, case.mismatched_kl, options)
    if name in UPDATES:
        return UPDATES[name](chosen, rejected, **options)
    return [PAIRS[name](*pair, **options) for pair in zip(chosen, rejected, strict=True)]


def check_written_out_formula(subject: Subject) -> None:
    """The losses are those of the formula, written out one number at a time."""
    near = preference_case(paired=UNPAIRED_ANSWERS not in subject.provides, drift=3.0)
    for case in (near, replace(near, mismatched_kl=-near.mismatched_kl)):
        inputs = preference_inputs(case, subject.needs, dtype=torch.float64)
        actual = subject.make()(inputs).loss.tolist()
        expected = written_out(subject.label, subject.config.model_dump(), case)
        for unit, (found, right) in enumerate(zip(actual, expected, strict=True)):
            assert math.isclose(found, right, rel_tol=1e-6), (
                f"the loss of unit {unit} is {found:.6g}, the formula gives {right:.6g}"
            )


CHECK = Check(check_written_out_formula)
