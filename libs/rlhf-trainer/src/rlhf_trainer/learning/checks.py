"""Checks that end a run which goes wrong: numbers that nothing may be trained on, skipped updates, steps without an
update, weights that the engine does not serve, and a KL penalty that the estimator leaves out.

With ``algo.kl.mode = reward`` the penalty reaches the policy through the estimator alone. With an estimator that reads
``RewardBatch.rewards`` alone a run would train without any penalty, and no metric would say why.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from rlhf_core.batch.metric import Metrics, metric_values
from rlhf_core.batch.trajectory_columns import TrajectoryColumns
from rlhf_core.contracts.advantage import AdvantageEstimator, Advantages, RewardBatch
from rlhf_core.contracts.engine import Engine
from rlhf_core.contracts.runtime import RoleHandle
from rlhf_core.errors import CapabilityError, EmptyStepsError, NonFiniteError, RolloutError
from rlhf_core.lazy import torch
from rlhf_guard.concurrency import all_at_once

log = logging.getLogger(__name__)


def require_finite(batch: TrajectoryColumns, name: str, column: NDArray[np.float32]) -> None:
    """Refuse a column (sum of A,) that has NaN or infinity.

    Raises:
        NonFiniteError: names the first sample and action token.
    """
    bad = np.flatnonzero(~np.isfinite(column))
    if len(bad):
        row = int(np.searchsorted(batch.action_offsets, bad[0], side="right")) - 1
        uid = ".".join(map(str, batch.uid[row].tolist()))
        raise NonFiniteError(
            f"{name} of sample {uid} is {column[bad[0]]} at action token {bad[0] - batch.action_offsets[row]} "
            f"({len(bad)} such values in this batch); nothing was trained on it",
            code="training/value-not-finite",
        )


def count_skipped(before: int, metrics: Metrics, *, role: str, limit: int, look_at: str) -> int:
    """Return how many updates of a role in a row were skipped, up to the one with these metrics; 0 if that one was not.

    Args:
        before: the number up to the update before.
        metrics: metrics of one update (``StepOutcome.metrics``).
        limit: the number that ends the run.
        look_at: the place where the cause may be seen, for the message.

    Raises:
        NonFiniteError: the number has reached ``limit``.
    """
    skipped = metrics.get("train/skipped_updates")
    if skipped is None or not skipped.value():
        return 0
    in_a_row = before + 1
    if in_a_row >= limit:
        raise NonFiniteError(
            f"{in_a_row} updates of the {role} in a row had a gradient that is not finite; its weights are those of "
            f"the last good update. {_origin(metrics)}Lower its learning rate, or look at {look_at}",
            code="training/gradient-not-finite",
        )
    skipping = "an update of the %s is skipped: its gradient is not finite. %s"
    log.warning(skipping, role, _origin(metrics))
    return in_a_row


def _origin(metrics: Metrics) -> str:
    """Return a sentence on the metrics that are not finite themselves: the loss among them whose name is a component's
    is where it began."""
    values = metric_values(metrics)
    found = sorted(name for name, value in values.items() if not math.isfinite(value))
    if not found:
        return ""
    are = "is" if len(found) == 1 else "are"
    return f"Of its metrics {', '.join(found)} {are} not finite either. "


DROPPED = "filter/dropped_groups/"
"""Prefix of the metrics that count dropped groups by reason."""


class EmptySteps:
    """Counts steps in a row without an update.

    Args:
        limit: ``train.max_empty_steps``, at least 1.
        before: the number up to the resume point.
    """

    def __init__(self, limit: int, before: int = 0) -> None:
        self._limit = limit
        self._reasons: Counter[str] = Counter()
        self.in_a_row = before

    def note(self, step: int, values: Mapping[str, float], *, updated: bool) -> None:
        """Take a step, and warn or end the run when there were too many without an update.

        Args:
            values: metrics of the step.

        Raises:
            EmptyStepsError: the number has reached the limit.
        """
        if updated:
            self.in_a_row = 0
            self._reasons.clear()
            return
        self.in_a_row += 1
        for name, count in values.items():
            if name.startswith(DROPPED):
                self._reasons[name.removeprefix(DROPPED)] += round(count)
        if self.in_a_row >= self._limit:
            raise EmptyStepsError(f"{self._text(step)} {_FIX}")
        if self.in_a_row == -(-self._limit // 2):
            log.warning(
                "%s The run ends after %d such steps (--train.max_empty_steps).",
                self._text(step),
                self._limit,
            )

    def _text(self, step: int) -> str:
        found = ", ".join(f"{reason}: {count}" for reason, count in self._reasons.most_common(5))
        groups = f"all groups were dropped ({found})" if found else "no group was left"
        steps = "step" if self.in_a_row == 1 else "steps in a row"
        return f"nothing was trained in {self.in_a_row} {steps}, up to step {step}: {groups}."


_FIX = (
    "Look at what drops them: the rewards (their on_error), and --rollout.filters with its options; draw more prompts "
    "a step with --rollout.max_refills, or wait longer with --train.max_empty_steps."
)


async def check_served_weights(engine: Engine, policy: RoleHandle, version: int) -> None:
    """Compare the weights' digests of engine and policy, unless they share tensors or one has no digest.

    Raises:
        RolloutError: the digests differ, so samples would not come from the policy that is trained.
    """
    if engine.shares_weights:
        return
    # The engine first: it computes in a process of its own, while the trainer may compute in this one.
    served, expected = await all_at_once([engine.checksum(), policy.checksum()])
    if served is not None and expected is not None and served != expected:
        raise RolloutError(
            f"after the update to version {version} the engine serves other weights (digest {served[:12]}) than the "
            f"trainer has ({expected[:12]}); its samples would be off-policy without a warning. Continue from the "
            "newest checkpoint with --resume auto. If it happens again, the engine loads this model's weights wrongly, "
            "and --rollout.check_weights false would only hide it.",
            code="engine/serves-other-weights",
        )


def require_agreement(logprob_diff_mean: float, limit: float) -> None:
    """Refuse to go on when sampler and trainer disagree about the same tokens under equal weights.

    Args:
        logprob_diff_mean: mean absolute difference of their log-probs, in nats per token.
        limit: ``rollout.max_mismatch``, in the same unit.

    Raises:
        RolloutError: the difference is above the limit.
    """
    if logprob_diff_mean <= limit:
        return
    raise RolloutError(
        f"sampler and trainer disagree about the tokens that were just sampled: their log-probs differ by "
        f"{logprob_diff_mean:.3g} nats a token on average, with equal weights; expected at most rollout.max_mismatch = "
        f"{limit:g}. One of them computes something else: another temperature, positions or tokens shifted by one, an "
        "architecture that the engine does not know, or a precision that is too low. Compare with --engine embedded "
        "and --model.dtype float32; if the difference is wanted, raise --rollout.max_mismatch or set it to none.",
        code="engine/logprobs-differ",
    )


_LEAST_CHANGE = 1e-3
"""Smallest change that counts, as a share of the largest advantage: far above float32's rounding, far below the change
by a penalty as large as a reward."""


class PenaltyChecked:
    """An estimator, of which ``make`` returns new ones, that is checked with the first batch that has any advantage."""

    def __init__(self, make: Callable[[], AdvantageEstimator], label: str) -> None:
        self._make = make
        self._label = label
        self._estimator = make()
        self._is_checked = False

    def __call__(self, batch: RewardBatch) -> Advantages:
        """Raises:
        CapabilityError: the advantages do not depend on the KL penalty.
        """
        if not self._is_checked and batch.kl_penalty is not None:
            self._is_checked = has_penalty_counted(self._make, batch, self._label)
        return self._estimator(batch)


def has_penalty_counted(
    make: Callable[[], AdvantageEstimator], batch: RewardBatch, label: str
) -> bool:
    """Return True when the advantages of ``batch`` under a large penalty differ from those without any.

    False is for a batch that proves nothing, because it has no advantage either way; nothing is learned from it. The
    batch's own penalty would not do: it is 0 before the first update, when policy and reference are the same. The
    estimators that are asked are new ones, so that the one that trains sees each batch once.

    Raises:
        CapabilityError: there are advantages, and they are the same.
    """
    plain = _with_penalty(batch, torch.zeros_like(batch.token_rewards))
    fined = _with_penalty(batch, -_scale(batch) * _uneven(batch))
    before, after = (make()(asked).advantages for asked in (plain, fined))
    largest, change = before.abs().max(), (after - before).abs().max()
    if change > _LEAST_CHANGE * largest:
        return True
    if largest == 0:
        return False
    raise CapabilityError(
        f"{label}: its advantages are the same with and without the KL penalty, which --algo.kl.mode reward puts "
        "into the rewards of tokens; the run would train without it.\n"
        "  Set --algo.kl.mode loss, or let the estimator add the penalty, as rlhf_core.math.advantages_at_tokens does.",
        code="config/penalty-without-effect",
    )


def _with_penalty(batch: RewardBatch, penalty: torch.Tensor) -> RewardBatch:
    assert batch.kl_penalty is not None
    earned = torch.where(batch.action_mask, batch.token_rewards - batch.kl_penalty, 0.0)
    penalty = torch.where(batch.action_mask, penalty, 0.0)
    return replace(batch, token_rewards=earned + penalty, kl_penalty=penalty)


def _scale(batch: RewardBatch) -> torch.Tensor:
    """Return the size of a penalty that no whitening or critic drowns: the largest reward or value, at least 1."""
    columns = (batch.rewards, batch.token_rewards, batch.values)
    sizes = [column.abs().nan_to_num().max() for column in columns if column is not None]
    return torch.stack([*sizes, batch.rewards.new_ones(())]).max()


def _uneven(batch: RewardBatch) -> torch.Tensor:
    """Return (B, A) with 1, 2 and 3 in turns along rows and tokens: whitening would remove a constant penalty."""
    rows, actions = batch.action_mask.shape
    index = torch.arange(rows)[:, None] + torch.arange(actions)
    return (1 + index % 3).to(batch.token_rewards.dtype)
