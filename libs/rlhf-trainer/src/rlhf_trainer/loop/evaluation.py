"""Evaluation on held-out sets: pass@k, mean reward and metrics of plugins per set and temperature."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlhf_config.checks.eval_names import full_name, powers_of_two, samples_at
from rlhf_config.resolved import Selection
from rlhf_config.run import RunConfig
from rlhf_core.batch.metric import metric_values
from rlhf_core.batch.token_columns import offsets_of
from rlhf_core.batch.trajectory_columns import TrajectoryColumns
from rlhf_core.called import asking
from rlhf_core.contracts.executor import FinishedGroup, GroupPlayer, RolloutContext, RolloutExecutor
from rlhf_core.contracts.functions.eval_metric import EvalEpisodes, EvalMetric
from rlhf_core.errors import PluginError
from rlhf_core.rng import eval_seed

from ..rollouts.episodes import EpisodeRunner, ScoreRequests
from ..rollouts.pool import Player, play_all
from ..rollouts.prompts import Tasks
from ..rollouts.reports import named_metrics, sample_texts

EPOCH = -1
"""The epoch in the uids of evaluation samples."""


@dataclass(frozen=True, slots=True)
class Evaluator:
    """Runs every held-out set at every temperature. Prompts and seeds are the same at each call, so differences between
    evaluations come from the weights alone."""

    sets: Mapping[str, Tasks]
    run_options: RunConfig
    """``log.samples`` is the number of episodes of each set and temperature that are returned as text."""
    executor: RolloutExecutor
    groups: GroupPlayer | None
    """Player of groups in other processes; None: this process plays them, with ``executor`` and ``score``."""
    context: RolloutContext
    score: ScoreRequests | None
    metrics: Sequence[NamedMetric]
    """Metrics of plugins, asked for each set and temperature."""

    @property
    def headline(self) -> str:
        """The mean reward of the first set at the first temperature."""
        return full_name(next(iter(self.sets)), self.run_options.eval.temperatures[0], "reward")

    async def run(self, step: int) -> tuple[dict[str, float], list[dict[str, Any]]]:
        """Return ``eval/<set>/T<temperature>/<metric>`` for all sets and temperatures, and a few episodes of each as
        text, with set and temperature as ``eval``, such as ``held_out/T0``."""
        threshold, renderer = self.run_options.eval.pass_threshold, self.context.renderer
        metrics: dict[str, float] = {}
        samples: list[dict[str, Any]] = []
        for name, tasks in self.sets.items():
            for index, temperature in enumerate(self.run_options.eval.temperatures):
                groups = await self._play(tasks, index, temperature, step)
                batches = [group.batch for group in groups if group.batch is not None]
                values = summarize(batches, threshold) | _losses(groups)
                if batches:
                    batch = TrajectoryColumns.concatenate(batches)
                    if self.metrics:
                        episodes = episodes_of(
                            batch,
                            renderer.decode,
                            set_name=name,
                            temperature=temperature,
                            pass_threshold=threshold,
                        )
                        values |= measured(self.metrics, episodes, values)
                    texts = sample_texts(batch, self.run_options.log.samples, renderer)
                    samples += [{"eval": f"{name}/T{temperature:g}", **text} for text in texts]
                for metric, value in values.items():
                    metrics[full_name(name, temperature, metric)] = value
        return metrics, samples

    async def _play(
        self, tasks: Tasks, temperature_index: int, temperature: float, step: int
    ) -> Sequence[FinishedGroup]:
        """Return the groups of all tasks of a set, played with the present weights."""
        draws = self.context.environment is not None
        episodes = EpisodeRunner(
            executor=self.executor,
            context=replace(
                self.context,
                sampling=self.run_options.eval.sampling(self.context.sampling, temperature),
            ),
            seed_of=partial(eval_seed, self.run_options.seed, temperature_index),
            score=self.score,
            samples_per_prompt=samples_at(
                temperature, self.run_options.eval.n_samples, draws=draws
            ),
            compared_share=0.0,
        )
        all_tasks = [tasks.task(index, EPOCH) for index in range(len(tasks))]
        return await play_all(Player(episodes, self.groups), all_tasks, step)


def _losses(groups: Sequence[FinishedGroup]) -> dict[str, float]:
    """Return the numbers of prompts and of episodes that could not be scored, where there are any."""
    prompts = sum(group.dropped is not None for group in groups)
    episodes = sum(sum(group.lost.values()) for group in groups)
    lost = {"dropped_prompts": float(prompts), "dropped_episodes": float(episodes)}
    return {name: count for name, count in lost.items() if count}


def summarize(batches: Sequence[TrajectoryColumns], pass_threshold: float) -> dict[str, float]:
    """Return mean reward, mean response length, share of truncated samples, pass@k for k = 1, 2, 4, ... (of the prompts
    that have k samples with a score), and means of ``reward/NAME`` and ``rollout/NAME`` for each reward and metric.

    A mean of a named metric is over the episodes that have it. A sample passes if its total reward is at least
    ``pass_threshold``, both in float32. Segments of one episode count once: with the largest reward, the actions of
    all, and as truncated if one of them is.
    """
    if not batches:
        return {}
    batch = TrajectoryColumns.concatenate(batches)
    first, rewards = _best_segments(batch)
    prompt = batch.group[first]
    total = np.bincount(prompt)
    passed = np.bincount(prompt[rewards >= np.float32(pass_threshold)], minlength=len(total))
    return {
        "reward": float(rewards.mean()),
        "response_length": float(batch.num_actions.sum() / len(first)),
        "truncated": float(np.mean(np.bincount(batch.episode, weights=batch.truncated) > 0)),
        **{
            f"pass@{k}": float(np.mean(pass_at_k(passed[total >= k], total[total >= k], k)))
            for k in powers_of_two(int(total.max()))
        },
        **metric_values(named_metrics(batch)),
    }


def _best_segments(batch: TrajectoryColumns) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
    """Return (E,) the first row of each episode, and (E,) the largest reward of its segments."""
    first = np.unique(batch.episode, return_index=True)[1]
    rewards = np.full(len(first), -np.inf)
    np.maximum.at(rewards, batch.episode, batch.total_reward)
    return first, rewards


def pass_at_k(passed: NDArray[np.int64], total: NDArray[np.int64], k: int) -> NDArray[np.float64]:
    """Return, per prompt, the chance that one of k samples passes: 1 - C(n - c, k) / C(n, k).

    Args:
        passed: (P,) number c of samples that passed.
        total: (P,) number n of samples, at least k.

    Unbiased for any n >= k. Source: Chen et al. 2021, arXiv:2107.03374, section 2.1.
    """
    pairs = zip(passed.tolist(), total.tolist(), strict=True)
    return np.array([1.0 - math.comb(n - c, k) / math.comb(n, k) for c, n in pairs])


_NAME = re.compile(r"[A-Za-z0-9_.@/-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedMetric:
    """A metric of the run, and who made it."""

    metric: EvalMetric
    label: str
    """Name in errors: the option, the component, its plugin and version."""


def metrics_of(selections: Sequence[Selection]) -> list[NamedMetric]:
    """Build the metrics that a run has chosen."""
    return [NamedMetric(metric=chosen.build(), label=chosen.label) for chosen in selections]


def measured(
    metrics: Sequence[NamedMetric], episodes: EvalEpisodes, taken: Mapping[str, float]
) -> dict[str, float]:
    """Return the numbers of all metrics.

    Args:
        taken: numbers that have a name already.

    Raises:
        PluginError: a metric raised, or returned what is no finite number, or a name that is taken; it names the metric
            with its plugin and version.
    """
    found: dict[str, float] = {}
    for named in metrics:
        where = f"{named.label}, set {episodes.set_name!r} at temperature {episodes.temperature:g}"
        with asking(f"{where}: it"):
            values: Any = named.metric(episodes)
        if not isinstance(values, Mapping):
            raise PluginError(
                f"{where}: it returned {values!r:.60} ({type(values).__name__}); expected numbers by name, such as "
                '{"share": 0.5}',
                code="metric/wrong-answer",
            )
        for name, value in values.items():
            if not isinstance(name, str) or not _NAME.fullmatch(name):
                problem = f"{where}: expected a name without spaces, got {name!r}"
                raise PluginError(problem, code="metric/malformed-name")
            if name in taken or name in found:
                raise PluginError(
                    f"{where}: {name!r} is the name of another metric already; choose another one",
                    code="metric/name-taken",
                )
            found[name] = _number(value, f"{where}: {name}")
    return found


def _number(value: Any, what: str) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise PluginError(
            f"{what} is {value!r}; expected a finite number. A metric leaves out what these episodes do not define.",
            code="metric/not-finite",
        )
    return number


def episodes_of(
    batch: TrajectoryColumns,
    decode: Callable[[list[int]], str],
    *,
    set_name: str,
    temperature: float,
    pass_threshold: float,
) -> EvalEpisodes:
    """Return a batch's episodes; of one with several segments the largest reward counts, and all of its actions."""
    first, rewards = _best_segments(batch)
    columns = batch.tokens.read()
    texts = [""] * len(first)
    bounds = offsets_of(batch.num_tokens)
    for row, episode in enumerate(batch.episode.tolist()):
        span = slice(bounds[row], bounds[row + 1])
        actions = columns.token_ids[span][columns.action_mask[span]]
        texts[episode] += decode(actions.tolist())
    return EvalEpisodes(
        set_name=set_name,
        temperature=temperature,
        prompt=batch.group[first].astype(np.int64),
        reward=rewards,
        passed=rewards >= np.float32(pass_threshold),
        num_actions=np.bincount(batch.episode, weights=batch.num_actions).astype(np.int64),
        responses=tuple(texts),
    )
