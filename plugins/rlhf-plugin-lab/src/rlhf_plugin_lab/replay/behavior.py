"""Share of a step's tokens whose probability has left the sampler's by more than the clip range of a loss."""

from __future__ import annotations

from rlhf_config import Selection
from rlhf_core.contracts import LossInputs, PolicyLoss, PreparingLoss, TrajectoryColumns
from rlhf_core.lazy import Bool, Float, NDArray, np, torch
from rlhf_core.math import pad_columns

_GIVEN = frozenset({"old_logprobs", "rollout_logprobs"})
"""Capabilities that a loss may need to be asked."""
_SIDES = ((-1.0, "clip/fraction_low"), (1.0, "clip/fraction_high"))
"""Advantages with which a bound counts, and the metric of the share of tokens beyond it."""


class ClipRange:
    """Clip range of a loss.

    A loss that reports ``clip/fraction_low`` and ``clip/fraction_high`` is asked itself, so that the range is that of
    its own ratio, such as a sequence's. Of another with the options ``clip_low`` and ``clip_high``, the ratio of each
    token is looked at.
    """

    def __init__(self, selection: Selection) -> None:
        loss: PolicyLoss = selection.build()
        asked = selection.needs <= _GIVEN and not isinstance(loss, PreparingLoss)
        self._loss = loss if asked else None
        options = selection.options.model_dump()
        low, high = options.get("clip_low"), options.get("clip_high")
        self._bounds = (
            (float(low), float(high))
            if isinstance(low, int | float) and isinstance(high, int | float)
            else None
        )

    def share_beyond(
        self,
        policy_logprobs: Float[torch.Tensor, "b a"],
        rollout_logprobs: Float[torch.Tensor, "b a"],
        action_mask: Bool[torch.Tensor, "b a"],
    ) -> float | None:
        """Return the share of the tokens beyond the range, whichever sign their advantage has; None: there is no range,
        or no token."""
        if not action_mask.any():
            return None
        asked = self._asked(policy_logprobs, rollout_logprobs, action_mask)
        if asked is not None or self._bounds is None:
            return asked
        low, high = self._bounds
        ratio = (policy_logprobs - rollout_logprobs)[action_mask].exp()
        return float(((ratio < 1.0 - low) | (ratio > 1.0 + high)).double().mean())

    def _asked(
        self,
        policy_logprobs: Float[torch.Tensor, "b a"],
        rollout_logprobs: Float[torch.Tensor, "b a"],
        action_mask: Bool[torch.Tensor, "b a"],
    ) -> float | None:
        """Return the share by the metrics of the loss; None: it has none, or needs more than log-probs."""
        if self._loss is None:
            return None
        share = 0.0
        for advantage, name in _SIDES:
            inputs = LossInputs(
                policy_logprobs=policy_logprobs,
                old_logprobs=rollout_logprobs,
                rollout_logprobs=rollout_logprobs,
                advantages=torch.full_like(policy_logprobs, advantage),
                action_mask=action_mask,
            )
            metric = self._loss(inputs).metrics.get(name)
            value = None if metric is None else metric.value()
            if value is None:
                return None
            share += value
        return share


class Behavior:
    """Shares of tokens beyond the clip range, by step, of what is heard of a run (``here.Hear``)."""

    def __init__(self, clip_range: ClipRange) -> None:
        self.step = 0
        """The step that is being done."""
        self.shares: dict[int, float] = {}
        self._range = clip_range

    def hear(self, batch: TrajectoryColumns, logprobs: NDArray[np.float32]) -> None:
        """Note the share of a step; tokens without the sampler's log-prob do not count."""
        lengths = torch.from_numpy(batch.num_actions)
        policy, mask = pad_columns(torch.from_numpy(logprobs), lengths)
        sampler, _ = pad_columns(torch.from_numpy(batch.rollout_logprobs), lengths)
        share = self._range.share_beyond(policy, sampler, mask & ~sampler.isnan())
        if share is not None:
            self.shares[self.step] = share
