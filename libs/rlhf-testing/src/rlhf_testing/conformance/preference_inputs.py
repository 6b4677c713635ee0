"""Answers for the checks of preference losses.

A step is made once, in float64, and cut afterwards, so that parts and whole hold the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from rlhf_core.contracts.preference import AnswerLogprobs, MatchedPairs, PreferenceInputs

NUM_CHOSEN = 5
NUM_REJECTED = {True: 5, False: 3}
"""Number of rejected answers, by whether answers come in pairs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerCase:
    """Columns (N,) of the answers of one kind, float64."""

    policy: Tensor
    reference: Tensor
    num_tokens: Tensor

    def logprobs(self) -> AnswerLogprobs:
        """Return the columns as a loss gets them."""
        return AnswerLogprobs(
            policy=self.policy, reference=self.reference, num_tokens=self.num_tokens
        )

    def rows(self, index: Sequence[int]) -> AnswerCase:
        """Return some of the answers."""
        rows = list(index)
        return AnswerCase(
            policy=self.policy[rows],
            reference=self.reference[rows],
            num_tokens=self.num_tokens[rows],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PreferenceCase:
    """The answers of one optimizer step."""

    chosen: AnswerCase
    rejected: AnswerCase
    mismatched_kl: float = 0.7
    cut_from: PreferenceCase | None = None
    """The whole step, of which these are some answers."""
    places: tuple[int, ...] = ()
    """Indices of the chosen answers in the whole step."""

    def rows(self, chosen: Sequence[int], rejected: Sequence[int]) -> PreferenceCase:
        """Return some of the answers; ``mismatched_kl`` and what is matched remain those of the whole step."""
        return replace(
            self,
            chosen=self.chosen.rows(chosen),
            rejected=self.rejected.rows(rejected),
            cut_from=self,
            places=tuple(chosen),
        )

    def changed(self, change: Callable[[AnswerCase], AnswerCase]) -> PreferenceCase:
        """Return the step with the answers of both kinds changed."""
        return replace(self, chosen=change(self.chosen), rejected=change(self.rejected))

    def matched(self) -> MatchedPairs:
        """Return what is matched with each pair."""
        if self.cut_from is None:
            return MatchedPairs.of(self.chosen.logprobs(), self.rejected.logprobs())
        whole, places = self.cut_from.matched(), list(self.places)
        return MatchedPairs(
            **{each.name: getattr(whole, each.name)[places] for each in fields(MatchedPairs)}
        )


def answer_case(num: int, generator: torch.Generator, *, drift: float) -> AnswerCase:
    """Return answers of 1 to 9 tokens with 0.3 to 2 nats each, whose log-ratios are at most ``drift``."""

    def drawn(low: float, high: float) -> Tensor:
        unit = torch.rand(num, generator=generator, dtype=torch.float64)
        return low + (high - low) * unit

    num_tokens = torch.randint(1, 10, (num,), generator=generator)
    reference = -num_tokens * drawn(0.3, 2.0)
    # Below 0, as log-probs are, also where the drift is large.
    policy = torch.minimum(reference + drawn(-drift, drift), 0.9 * reference)
    return AnswerCase(policy=policy, reference=reference, num_tokens=num_tokens)


def preference_case(*, paired: bool, drift: float = 0.3) -> PreferenceCase:
    """Return a step in which policy and reference differ by up to ``drift`` nats per answer.

    Args:
        paired: whether there are as many rejected answers as chosen ones.
    """
    generator = torch.Generator().manual_seed(0)
    return PreferenceCase(
        chosen=answer_case(NUM_CHOSEN, generator, drift=drift),
        rejected=answer_case(NUM_REJECTED[paired], generator, drift=drift),
    )


def at_the_start(case: PreferenceCase) -> PreferenceCase:
    """Return the case before any update: the policy is the reference, and the mismatched KL is 0."""
    same = case.changed(lambda answers: replace(answers, policy=answers.reference))
    return replace(same, mismatched_kl=0.0)


def preference_inputs(
    case: PreferenceCase,
    needs: frozenset[str],
    *,
    dtype: torch.dtype = torch.float32,
    gradient: bool = False,
    all_gradients: bool = False,
) -> PreferenceInputs:
    """Return the case as a loss gets it: the columns that the loss needs, and no others.

    Args:
        gradient: whether the policy's log-probs require a gradient.
        all_gradients: whether the reference and ``mismatched_kl`` do, too.
    """

    def answers(of: AnswerCase) -> AnswerLogprobs:
        reference = None
        if "ref_logprobs" in needs:
            reference = of.reference.to(dtype, copy=True).requires_grad_(all_gradients)
        return AnswerLogprobs(
            policy=of.policy.to(dtype, copy=True).requires_grad_(gradient or all_gradients),
            reference=reference,
            num_tokens=of.num_tokens.clone(),
        )

    mismatched_kl = None
    if "mismatched_kl" in needs:
        mismatched_kl = torch.tensor(case.mismatched_kl, dtype=dtype).requires_grad_(all_gradients)
    matched = None
    if "matched_pairs" in needs:
        columns = {each.name: getattr(case.matched(), each.name) for each in fields(MatchedPairs)}
        matched = MatchedPairs(
            **{
                name: column.to(dtype, copy=True).requires_grad_(all_gradients)
                for name, column in columns.items()
            }
        )
    return PreferenceInputs(
        chosen=answers(case.chosen),
        rejected=answers(case.rejected),
        mismatched_kl=mismatched_kl,
        matched=matched,
    )


def tensors_by_name(inputs: PreferenceInputs) -> dict[str, Tensor]:
    """Return all tensors of the inputs, such as ``chosen.policy``."""
    named = {
        f"{kind}.{name}": getattr(answers, name)
        for kind, answers in (("chosen", inputs.chosen), ("rejected", inputs.rejected))
        for name in ("policy", "reference", "num_tokens")
    }
    named["mismatched_kl"] = inputs.mismatched_kl
    for each in fields(MatchedPairs):
        column = None if inputs.matched is None else getattr(inputs.matched, each.name)
        named[f"matched.{each.name}"] = column
    return {name: tensor for name, tensor in named.items() if tensor is not None}
