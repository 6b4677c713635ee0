"""Several preference losses on the same answers, as one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..batch.metric import Metric, Metrics
from ..contracts.preference import PreferenceInputs, PreferenceLoss, PreferenceResult


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightedPreferenceLoss:
    """One part of a sum."""

    name: str
    """Name of the loss's component, under which the part is logged."""
    loss: PreferenceLoss
    weight: float


class PreferenceSum:
    """A preference loss that is the weighted sum of others. Rewards are those of the first.

    Source: MPO (Wang et al. 2024, arXiv:2411.10442) adds losses of the preference, of the quality of each answer, and
    of its likelihood. TRL's ``loss_type`` with several names and ``loss_weights`` is equal.
    """

    def __init__(self, parts: Sequence[WeightedPreferenceLoss]) -> None:
        self._parts = tuple(parts)

    def __call__(self, inputs: PreferenceInputs) -> PreferenceResult:
        results = [part.loss(inputs) for part in self._parts]
        first, weight = results[0], self._parts[0].weight
        if len(results) == 1 and weight == 1.0:
            return first
        loss = weight * first.loss  # (U,)
        for part, result in zip(self._parts[1:], results[1:], strict=True):
            loss = loss + part.weight * result.loss
        metrics: Metrics = {}
        for part, result in zip(self._parts, results, strict=True):
            mean = Metric(result.loss.detach().sum(), len(result.loss))
            metrics |= {**result.metrics, f"preference/loss_{part.name}": mean}
        return replace(first, loss=loss, metrics=metrics)
