"""The component: a holder of its options that calls the formula and reports what it did."""

from __future__ import annotations

from typing import Any

from jaxtyping import Bool, Float
from torch import Tensor

from rlhf_core.contracts import Correction, Metric, Metrics
from rlhf_core.math import masked_sum

from .config import CorrectionConfig
from .weights import ImportanceWeights, importance_weights


class ImportanceCorrection:
    """Every correction of this package: its options say which rule it follows."""

    def __init__(self, config: CorrectionConfig) -> None:
        self._options: dict[str, Any] = config.rule().model_dump(exclude_none=True)

    def __call__(
        self,
        old_logprobs: Float[Tensor, "b a"],
        rollout_logprobs: Float[Tensor, "b a"],
        action_mask: Bool[Tensor, "b a"],
    ) -> Correction:
        result = importance_weights(old_logprobs, rollout_logprobs, action_mask, **self._options)
        return Correction(
            weights=result.weights, keep=result.keep, metrics=_metrics(result, action_mask)
        )


def _metrics(result: ImportanceWeights, action_mask: Bool[Tensor, "b a"]) -> Metrics:
    kept, tokens = result.keep.sum(), action_mask.sum()
    sequences = action_mask.any(dim=1).sum()
    kept_sequences = result.keep.any(dim=1).sum()
    return {
        "correction/weight": Metric(masked_sum(result.weights, result.keep), kept),
        "correction/dropped_tokens": Metric(tokens - kept, tokens),
        "correction/dropped_sequences": Metric(sequences - kept_sequences, sequences),
        "correction/clipped_weights": Metric((result.bounded & result.keep).sum(), kept),
    }
