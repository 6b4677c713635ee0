"""One job with an engine: its episodes, played by the executor and scored, as records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from rlhf_core.contracts import (
    EpisodeEnd,
    FinishedGroup,
    Generator,
    RolloutExecutor,
    Stop,
    Trajectory,
)
from rlhf_core.media import ImageReader
from rlhf_data import TokenizerRenderer
from rlhf_trainer.inference import (
    Environments,
    EpisodeRunner,
    eval_seed,
    fault_point,
)
from rlhf_trainer.rollouts.worker import QueuedRewards, RolloutParts

from ..worklist.image_files import image_record, with_files
from .jobs import EvalJob
from .options import EvalOptions
from .records import EpisodeRecord, Segment, left_out

_END = "end/"
"""Beginning of the metrics by which executors say how an episode ended."""


class PlaysJobs(Protocol):
    """Plays jobs, with an engine or through a server."""

    async def play(self, job: EvalJob) -> list[EpisodeRecord]:
        """Return the episodes of a job.

        Raises:
            RLHFError: an episode failed, or could not be scored.
        """

    async def close(self) -> None:
        """End the call to the rewards that is under way."""


class EnginePlayer:
    """``PlaysJobs`` with an engine of this process. Seeds are those of an evaluation within ``rlhf train``.

    Args:
        environment: makes an environment for a task; None: there is none.
        scores: the rewards; None: the environment alone gives rewards.
        images: takes images of observations in; None: the model reads text alone.
    """

    def __init__(
        self,
        options: EvalOptions,
        *,
        engine: Generator,
        renderer: TokenizerRenderer,
        executor: RolloutExecutor,
        environment: Environments | None,
        scores: QueuedRewards | None,
        images: ImageReader | None = None,
    ) -> None:
        self._options = options
        self._engine = engine
        self._parts = RolloutParts(executor, renderer, environment, images)
        self._scores = scores
        self._runners = {
            (index, samples): self._runner(index, temperature, samples)
            for index, temperature in enumerate(options.eval.temperatures)
            for samples in {1, options.eval.n_samples}
        }

    async def play(self, job: EvalJob) -> list[EpisodeRecord]:
        fault_point("generate", job.number)
        runner = self._runners[job.temperature_index, job.samples]
        played = await runner.play(job.task, with_logprobs=False)
        (finished,) = await runner.score([played])
        ordered = sorted(played.trajectories, key=lambda trajectory: trajectory.uid)
        rows: dict[int, list[int]] = {}
        for row, trajectory in enumerate(ordered):
            rows.setdefault(trajectory.uid.sample, []).append(row)
        return [
            left_out(job, sample, played.left_out[sample])
            if sample in played.left_out
            else self._record(job, [ordered[row] for row in rows[sample]], finished, rows[sample])
            for sample in range(job.samples)
        ]

    async def close(self) -> None:
        if self._scores is not None:
            await self._scores.close()

    def _runner(self, index: int, temperature: float, samples: int) -> EpisodeRunner:
        return EpisodeRunner(
            executor=self._parts.executor,
            context=self._parts.context(
                self._engine, self._options.rollout.at(temperature), self._options.max_length()
            ),
            seed_of=partial(eval_seed, self._options.seed, index),
            score=None if self._scores is None else self._scores.score,
            samples_per_prompt=samples,
            compared_share=0.0,
        )

    def _record(
        self,
        job: EvalJob,
        segments: Sequence[Trajectory],
        finished: FinishedGroup,
        rows: list[int],
    ) -> EpisodeRecord:
        """Return an episode, whose segments are the given rows of its group. Its text is that which rewards saw."""
        last = max(range(len(segments)), key=lambda index: (segments[index].is_final, index))
        final, batch, at = segments[last], finished.batch, rows[last]
        metrics = dict(final.metrics) if batch is None else _row_of(batch.metrics, at)
        tokens, start = final.token_ids.tolist(), final.turns[0].start
        return EpisodeRecord(
            set=job.set,
            temperature=job.temperature,
            uid=str(final.uid._replace(segment=0)),
            task=job.key,
            digest=job.digest,
            prompt=self._parts.renderer.decode(tokens[:start], skip_special_tokens=False),
            messages=with_files(job.task.messages) or None,
            response=self._parts.renderer.decode(tokens[start:], skip_special_tokens=True),
            segments=tuple(map(_segment, segments)),
            reward=None if batch is None else float(batch.total_reward[rows].max()),
            rewards={} if batch is None else _row_of(batch.rewards, at),
            metrics={name: value for name, value in metrics.items() if not _is_end(name)},
            end=_end_of(metrics, final),
            turns=sum(len(one.turns) for one in segments),
            tokens_in=sum(turn.start for one in segments for turn in one.turns),
            tokens_out=sum(int(one.action_mask.sum()) for one in segments),
            truncated=any(one.truncated for one in segments),
            dropped=finished.dropped,
        )


def _segment(trajectory: Trajectory) -> Segment:
    return Segment(
        token_ids=tuple(trajectory.token_ids.tolist()),
        turns=tuple((turn.start, turn.end) for turn in trajectory.turns),
        images=tuple(map(image_record, trajectory.media)),
    )


def _row_of(columns: Mapping[str, NDArray[np.float32]], row: int) -> dict[str, float]:
    """Return the numbers of a row, without the names that it has none for."""
    return {
        name: float(column[row]) for name, column in columns.items() if not np.isnan(column[row])
    }


def _is_end(name: str) -> bool:
    return name.startswith(_END)


def _end_of(metrics: Mapping[str, float], last: Trajectory) -> str:
    """Return why an episode ended, as its executor says, or else as its last turn tells."""
    for name, value in metrics.items():
        if _is_end(name) and value:
            return name.removeprefix(_END)
    stop = last.turns[-1].stop
    if metrics.get("finished") == 1.0:
        return EpisodeEnd.FINISHED.value
    if stop is Stop.LENGTH:
        return EpisodeEnd.LENGTH.value
    if stop is Stop.ABORTED:
        return EpisodeEnd.ABORTED.value
    has_turns = metrics.get("finished", 1.0) == 0.0
    return (EpisodeEnd.TURNS if has_turns else EpisodeEnd.FINISHED).value
