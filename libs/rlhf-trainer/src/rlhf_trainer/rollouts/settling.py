"""From groups that were played to the rows of a step: shaped, filtered, and each accounted for in the ledger."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from rlhf_core.batch.metric import Metric, Metrics
from rlhf_core.batch.trajectory_columns import TrajectoryColumns
from rlhf_core.contracts.executor import FinishedGroup
from rlhf_core.contracts.reward import RewardShaper, RolloutInfo, SampleFilter

from ..durable.ledger import Groups, Ledger, groups_of
from .batch_metrics import batch_metrics, groups_by_version, staleness_metrics
from .episodes import EpisodeRunner
from .prompts import Cursor, prompt_results
from .samples import UNSHAPED

Key = tuple[int, int]
"""(epoch, prompt) of a group."""


@dataclass(frozen=True, slots=True)
class Draw:
    """One step's request for prompts, and what has come of it so far."""

    step: int
    cursor: Cursor
    num_prompts: int
    version: int
    ledger: Ledger
    steps_left: int
    kept: list[TrajectoryColumns] = field(default_factory=list)
    """Groups to train on."""
    unjudged: list[TrajectoryColumns] = field(default_factory=list)
    """Groups that a judge dropped, which train what needs no advantages."""
    metrics: list[Metrics] = field(default_factory=list)


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
        draw.cursor.note(prompt_results(scored, draw.step))
        return self._shape_and_filter(scored, draw) if scored else 0

    def write_off(self, groups: Groups, reason: str, draw: Draw) -> None:
        """Record whole groups as dropped."""
        draw.ledger.dropped(draw.step, groups, reason=reason)
        draw.metrics.append(
            {f"filter/dropped_groups/{reason}": Metric(len(groups), reduction="sum")}
        )

    def trained(self, batch: TrajectoryColumns, draw: Draw, *, max_staleness: int) -> Metrics:
        """Record the batch as trained on, and return its metrics.

        Raises:
            RolloutError: a token is staler than the bound allows.
        """
        metrics = staleness_metrics(batch, draw.version, max_staleness)
        for version, groups in groups_by_version(batch).items():
            draw.ledger.trained(draw.step, groups, version=version)
        return metrics | batch_metrics(batch)

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
            draw.metrics.append({name: Metric(sum(counts.values()), reduction="sum")})
        return [finished.batch for _, finished in groups if finished.batch is not None]

    def _shape_and_filter(self, scored: Sequence[TrajectoryColumns], draw: Draw) -> int:
        info = RolloutInfo(
            step=draw.step,
            version=draw.version,
            max_new_tokens=self.episodes.context.sampling.max_new_tokens,
            max_length=self.episodes.context.max_length,
        )
        batch = self._shape(TrajectoryColumns.concatenate(scored), info, draw)
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
                    draw.unjudged.append(one)
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
            draw.metrics.append(metrics)
        return batch
