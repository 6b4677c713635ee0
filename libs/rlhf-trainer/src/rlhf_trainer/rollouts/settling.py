"""From groups that were played to the rows of a step: shaped, filtered, and each accounted for in the ledger; and the
end of a run whose steps have none."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from rlhf_core.batch.metric import Metric, Metrics, merge_metrics
from rlhf_core.batch.trajectory_columns import TrajectoryColumns
from rlhf_core.contracts.executor import FinishedGroup
from rlhf_core.contracts.reward import RewardShaper, RolloutInfo, SampleFilter
from rlhf_core.errors import EmptyStepsError

from ..durable.records import Groups, Ledger, groups_of
from .episodes import EpisodeRunner
from .prompts import Cursor
from .reports import UNSHAPED, batch_metrics, staleness_metrics

log = logging.getLogger(__name__)

Key = tuple[int, int]
"""(epoch, prompt) of a group."""
DROPPED = "filter/dropped_groups/"
"""Prefix of the metrics that count dropped groups by reason."""
_FIX = (
    "Look at what drops them: the rewards (their on_error), --rollout.filters with its options, or "
    "--algo.loss.mask_truncated where all samples are cut off (--rollout.max_new_tokens); draw more prompts a step "
    "with --rollout.max_refills, or wait longer with --train.max_empty_steps."
)

_NONE = np.empty(0, dtype=np.int64)


@dataclass(slots=True)
class Draw:
    """One step's request for prompts, and what has come of it: in parts while groups arrive, and then as a batch."""

    step: int
    cursor: Cursor
    num_prompts: int
    version: int
    ledger: Ledger
    steps_left: int
    kept: list[TrajectoryColumns] = field(default_factory=list)
    """Groups to train on."""
    dropped_by_judges: list[TrajectoryColumns] = field(default_factory=list)
    """Groups that were dropped for their rewards, and train what needs no advantages."""
    metric_parts: list[Metrics] = field(default_factory=list)
    """Metrics of what has come so far, which ``finish`` merges into ``metrics``."""
    batch: TrajectoryColumns | None = None
    """The batch to train on; None when every group was dropped."""
    unjudged: TrajectoryColumns | None = None
    """The groups that judges dropped, as one batch; None: there are none."""
    metrics: Metrics = field(default_factory=dict)
    generate_s: float = 0.0
    """Time that the step spent waiting for generation."""
    reward_s: float = 0.0
    """Time that the step spent waiting for rewards after that."""

    def to_learn(
        self, *, trains_unjudged: bool
    ) -> tuple[TrajectoryColumns, NDArray[np.bool_] | None] | None:
        """Return the rows to learn from, and (B,) whether their rewards count, None where all do; None: nothing came.

        Args:
            trains_unjudged: rows whose rewards do not count train something. Without that there are none of them: a
                step of which no row is left may still imitate given responses.
        """
        if self.unjudged is None or (self.batch is not None and not trains_unjudged):
            return None if self.batch is None else (self.batch, None)
        if not trains_unjudged:
            return self.unjudged.select(_NONE), _NONE.astype(bool)
        if self.batch is None:
            return self.unjudged, np.zeros(len(self.unjudged), dtype=bool)
        whole = TrajectoryColumns.concatenate([self.batch, self.unjudged])
        kept = set(self.batch.uids())
        return whole, np.array([uid in kept for uid in whole.uids()])


@dataclass(frozen=True, slots=True)
class Settling:
    """Decides what becomes of each group, and writes it into the ledger."""

    episodes: EpisodeRunner
    shapers: Sequence[RewardShaper]
    filters: Sequence[SampleFilter]
    judges: Sequence[SampleFilter]
    """Filters, among these, whose dropped groups still train what needs no advantages."""

    @property
    def num_samples(self) -> int:
        """Episodes of each prompt."""
        return len(self.episodes.samples)

    def take(self, groups: Sequence[tuple[Key, FinishedGroup]], draw: Draw) -> int:
        """Add the groups that are kept to the draw, and return the number of those that filters dropped.

        The cursor learns the results of all that were scored.
        """
        scored = self._scored(groups, draw)
        draw.cursor.note(scored, draw.step)
        return self._shape_and_filter(scored, draw) if scored else 0

    def write_off(self, groups: Groups, reason: str, draw: Draw) -> None:
        """Record whole groups as dropped."""
        draw.ledger.dropped(draw.step, groups, reason=reason)
        draw.metric_parts.append({DROPPED + reason: Metric(len(groups), reduction="sum")})

    def finish(self, draw: Draw, *, max_staleness: int) -> None:
        """Join what has come of the draw, and record its batch as trained on.

        Raises:
            RolloutError: a token is staler than the bound allows.
        """
        draw.metrics = merge_metrics(draw.metric_parts)
        draw.batch, draw.unjudged = _join(draw.kept), _join(draw.dropped_by_judges)
        draw.kept, draw.dropped_by_judges = [], []  # a step need not hold its rows twice
        if draw.batch is None:
            return
        draw.metrics |= staleness_metrics(draw.batch, draw.version, max_staleness)
        for version, groups in groups_by_version(draw.batch).items():
            draw.ledger.trained(draw.step, groups, version=version)
        draw.metrics |= batch_metrics(draw.batch)

    def _scored(
        self, groups: Sequence[tuple[Key, FinishedGroup]], draw: Draw
    ) -> list[TrajectoryColumns]:
        """Record groups that could not be scored, and episodes that were left out, as dropped; return the others."""
        dropped: dict[str, dict[Key, int]] = {}
        left_out: dict[str, dict[Key, int]] = {}
        for key, finished in groups:
            for reason, count in finished.lost.items():
                left_out.setdefault(reason, {})[key] = count
            if finished.dropped is not None:
                left = self.num_samples - sum(finished.lost.values())
                dropped.setdefault(finished.dropped, {})[key] = left
        for reason, counts in dropped.items():
            self.write_off(counts, reason, draw)
        for reason, counts in left_out.items():
            draw.ledger.dropped(draw.step, counts, reason=reason)
            name = f"filter/dropped_episodes/{reason}"
            draw.metric_parts.append({name: Metric(sum(counts.values()), reduction="sum")})
        return [finished.batch for _, finished in groups if finished.batch is not None]

    def _shape_and_filter(self, scored: Sequence[TrajectoryColumns], draw: Draw) -> int:
        batch = TrajectoryColumns.concatenate(scored)
        if not self.shapers and not self.filters:
            draw.kept.append(batch)
            return 0
        info = RolloutInfo(
            step=draw.step,
            version=draw.version,
            max_new_tokens=self.episodes.context.sampling.max_new_tokens,
            max_length=self.episodes.context.max_length,
        )
        batch = self._shape(batch, info, draw)
        if not self.filters:
            draw.kept.append(batch)
            return 0
        group = batch.group
        keep = np.ones(len(batch), dtype=bool)
        num_dropped = 0
        for index in range(int(group.max()) + 1):
            rows = np.flatnonzero(group == index)
            one = batch.select(rows)
            by, reason = next(
                ((f, why) for f in self.filters if (why := f.keep(one, info)) is not None),
                (None, None),
            )
            if reason is not None:
                if any(by is judge for judge in self.judges):
                    draw.dropped_by_judges.append(one)
                keep[rows] = False
                num_dropped += 1
                self.write_off(groups_of(one.uids()), reason, draw)
        kept = np.flatnonzero(keep)
        if len(kept):
            draw.kept.append(batch.select(kept))
        return num_dropped

    def _shape(self, batch: TrajectoryColumns, info: RolloutInfo, draw: Draw) -> TrajectoryColumns:
        """Return the batch with the rewards that the shapers make of its own, which stay as a metric of each sample."""
        if self.shapers:
            batch = replace(batch, metrics={**batch.metrics, UNSHAPED: batch.total_reward})
        for shaper in self.shapers:
            batch, metrics = shaper.shape(batch, info)
            draw.metric_parts.append(metrics)
        return batch


def _join(parts: Sequence[TrajectoryColumns]) -> TrajectoryColumns | None:
    if not parts:
        return None
    return parts[0] if len(parts) == 1 else TrajectoryColumns.concatenate(parts)


def groups_by_version(batch: TrajectoryColumns) -> dict[int, Groups]:
    """Return the groups of a batch by the version of their oldest token."""
    group = batch.group
    oldest_of_group = np.full(int(group.max()) + 1, np.iinfo(np.int64).max)
    np.minimum.at(oldest_of_group, group, batch.oldest_version)
    found: dict[int, Groups] = {}
    for version in np.unique(oldest_of_group).tolist():
        rows = np.flatnonzero(oldest_of_group[group] == version)
        found[version] = groups_of(batch.select(rows).uids())
    return found


class EmptySteps:
    """Counts steps in a row that learned from no reward. A KL or an entropy bonus may have been trained in them.

    Args:
        limit: ``train.max_empty_steps``, at least 1.
        before: the number up to the resume point.
    """

    def __init__(self, limit: int, before: int = 0) -> None:
        self._limit = limit
        self._reasons: Counter[str] = Counter()
        self.in_a_row = before

    def note(self, step: int, values: Mapping[str, float], *, updated: bool) -> None:
        """Take a step, and warn or end the run when too many in a row learned from no reward.

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
        return f"nothing was learned from rewards in {self.in_a_row} {steps}, up to step {step}: {groups}."
