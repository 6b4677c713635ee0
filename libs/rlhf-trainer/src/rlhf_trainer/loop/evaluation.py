"""Evaluation on held-out sets: pass@k, mean reward and metrics of plugins per set and temperature."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlhf_config.checks.eval_names import full_name, powers_of_two, samples_at
from rlhf_core.batch.metric import metric_values
from rlhf_core.batch.trajectory_columns import TrajectoryColumns
from rlhf_core.contracts.executor import FinishedGroup, GroupPlayer, RolloutContext, RolloutExecutor
from rlhf_core.rng import eval_seed

from ..rollouts.batch_metrics import named_metrics
from ..rollouts.drawing.prompt_set import Tasks
from ..rollouts.episodes import EpisodeRunner, ScoreRequests
from ..rollouts.players import player_for
from ..rollouts.pool import play_all
from ..rollouts.samples import sample_texts
from .measuring.eval_metrics import NamedMetric, episodes_of, measured

EPOCH = -1
"""The epoch in the uids of evaluation samples."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated:
    """Results of one evaluation."""

    metrics: Mapping[str, float]
    samples: Sequence[Mapping[str, Any]] = ()
    """A few of its episodes as text, each with set and temperature as ``eval``, such as ``held_out/T0``."""


class Evaluator:
    """Runs every held-out set at every temperature. Prompts and seeds are the same at each call, so differences between
    evaluations come from the weights alone.

    Args:
        groups: player of groups in other processes; None: this process plays them, with ``executor`` and ``score``.
        num_texts: episodes of each set and temperature that are returned as text.
        metrics: of plugins, asked for each set and temperature.
    """

    def __init__(
        self,
        sets: Mapping[str, Tasks],
        *,
        executor: RolloutExecutor,
        groups: GroupPlayer | None,
        context: RolloutContext,
        score: ScoreRequests | None,
        seed: int,
        temperatures: Sequence[float],
        num_samples: int,
        pass_threshold: float,
        num_texts: int = 0,
        metrics: Sequence[NamedMetric] = (),
    ) -> None:
        self.sets = sets
        self._executor = executor
        self._groups = groups
        self._context = context
        self._score = score
        self._seed = seed
        self._temperatures = temperatures
        self._num_samples = num_samples
        self._pass_threshold = pass_threshold
        self._num_texts = num_texts
        self._metrics = metrics

    async def run(self, step: int) -> Evaluated:
        """Return ``eval/<set>/T<temperature>/<metric>`` for all sets and temperatures, and a few episodes of each."""
        metrics: dict[str, float] = {}
        samples: list[dict[str, Any]] = []
        for name, tasks in self.sets.items():
            for index, temperature in enumerate(self._temperatures):
                groups = await self._play(tasks, index, temperature, step)
                batches = [group.batch for group in groups if group.batch is not None]
                values = summarize(batches, self._pass_threshold) | _losses(groups)
                values |= self._measured(batches, name, temperature, values)
                for metric, value in values.items():
                    metrics[full_name(name, temperature, metric)] = value
                samples += self._texts(batches, f"{name}/T{temperature:g}")
        return Evaluated(metrics=metrics, samples=samples)

    def _measured(
        self,
        batches: Sequence[TrajectoryColumns],
        name: str,
        temperature: float,
        taken: Mapping[str, float],
    ) -> dict[str, float]:
        if not batches or not self._metrics:
            return {}
        episodes = episodes_of(
            TrajectoryColumns.concatenate(batches),
            self._context.renderer.decode,
            set_name=name,
            temperature=temperature,
            pass_threshold=self._pass_threshold,
        )
        return measured(self._metrics, episodes, taken)

    def _texts(self, batches: Sequence[TrajectoryColumns], label: str) -> list[dict[str, Any]]:
        if not batches or not self._num_texts:
            return []
        batch = TrajectoryColumns.concatenate(batches)
        texts = sample_texts(batch, self._num_texts, self._context.renderer)
        return [{"eval": label, **text} for text in texts]

    async def _play(
        self, tasks: Tasks, temperature_index: int, temperature: float, step: int
    ) -> Sequence[FinishedGroup]:
        """Return the groups of all tasks of a set, played with the present weights."""
        draws = self._context.environment is not None
        episodes = EpisodeRunner(
            executor=self._executor,
            context=replace(
                self._context, sampling=replace(self._context.sampling, temperature=temperature)
            ),
            seed_of=partial(eval_seed, self._seed, temperature_index),
            score=self._score,
            samples_per_prompt=samples_at(temperature, self._num_samples, draws=draws),
            compared_share=0.0,
        )
        all_tasks = [tasks.task(index, EPOCH) for index in range(len(tasks))]
        return await play_all(player_for(episodes, self._groups), all_tasks, step)


def _losses(groups: Sequence[FinishedGroup]) -> dict[str, float]:
    """Return the numbers of prompts and of episodes that could not be scored, where there are any."""
    prompts = sum(group.dropped is not None for group in groups)
    episodes = sum(sum(group.lost.values()) for group in groups)
    lost = {"dropped_prompts": float(prompts), "dropped_episodes": float(episodes)}
    return {name: count for name, count in lost.items() if count}


def summarize(batches: Sequence[TrajectoryColumns], pass_threshold: float) -> dict[str, float]:
    """Return mean reward, mean response length, share of truncated samples, pass@k for k = 1, 2, 4, ..., and means of
    ``reward/NAME`` for each reward and ``rollout/NAME`` for each metric of rewards, environment and executor.

    A mean of a named metric is over the episodes that have it. A sample passes if its total reward is at least
    ``pass_threshold``, both in float32. Segments of one episode count once: with the largest reward, the actions of
    all, and as truncated if one of them is.
    """
    if not batches:
        return {}
    batch = TrajectoryColumns.concatenate(batches)
    first = np.unique(batch.episode, return_index=True)[1]
    rewards = np.full(len(first), -np.inf)
    np.maximum.at(rewards, batch.episode, batch.total_reward)
    prompt = batch.group[first]
    total = np.bincount(prompt)
    passed = np.bincount(prompt[rewards >= np.float32(pass_threshold)], minlength=len(total))
    return {
        "reward": float(rewards.mean()),
        "response_length": float(batch.num_actions.sum() / len(first)),
        "truncated": float(np.mean(np.bincount(batch.episode, weights=batch.truncated) > 0)),
        **{
            f"pass@{k}": float(np.mean(pass_at_k(passed, total, k)))
            for k in powers_of_two(int(total.min()))
        },
        **metric_values(named_metrics(batch)),
    }


def pass_at_k(passed: NDArray[np.int64], total: NDArray[np.int64], k: int) -> NDArray[np.float64]:
    """Return, per prompt, the chance that one of k samples passes: 1 - C(n - c, k) / C(n, k).

    Args:
        passed: (P,) number c of samples that passed.
        total: (P,) number n of samples, at least k.

    Unbiased for any n >= k. Source: Chen et al. 2021, arXiv:2107.03374, section 2.1.
    """
    pairs = zip(passed.tolist(), total.tolist(), strict=True)
    return np.array([1.0 - math.comb(n - c, k) / math.comb(n, k) for c, n in pairs])
