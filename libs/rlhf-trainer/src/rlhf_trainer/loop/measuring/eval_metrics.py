"""Metrics of plugins on the episodes of an evaluation: asked by set and temperature, and checked."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlhf_config.resolved import Selection
from rlhf_core.batch.ragged import offsets_of
from rlhf_core.batch.trajectory_columns import TrajectoryColumns
from rlhf_core.contracts.functions.eval_metric import EvalEpisodes, EvalMetric
from rlhf_core.errors import PluginError, RLHFError

_NAME = re.compile(r"[A-Za-z0-9_.@/-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedMetric:
    """A metric of the run, and who made it."""

    metric: EvalMetric
    label: str
    """Name in errors: the option, the component, its plugin and version."""


def metrics_of(selections: Sequence[Selection]) -> list[NamedMetric]:
    """Build the metrics that a run has chosen."""
    return [
        NamedMetric(
            metric=chosen.registered.build(chosen.options),
            label=f"--{chosen.slot} {chosen.registered.name} ({chosen.registered.origin})",
        )
        for chosen in selections
    ]


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
        try:
            values: Any = named.metric(episodes)
        except RLHFError:
            raise
        except Exception as error:  # a plugin may raise anything
            raise PluginError(f"{where}: it raised {type(error).__name__}: {error}") from error
        if not isinstance(values, Mapping):
            raise PluginError(
                f"{where}: it returned {values!r:.60} ({type(values).__name__}); expected numbers by name, such as "
                '{"share": 0.5}'
            )
        for name, value in values.items():
            if not isinstance(name, str) or not _NAME.fullmatch(name):
                raise PluginError(f"{where}: expected a name without spaces, got {name!r}")
            if name in taken or name in found:
                raise PluginError(
                    f"{where}: {name!r} is the name of another metric already; choose another one"
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
            f"{what} is {value!r}; expected a finite number. A metric leaves out what these episodes do not define."
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
    first = np.unique(batch.episode, return_index=True)[1]
    rewards = np.full(len(first), -np.inf)
    np.maximum.at(rewards, batch.episode, batch.total_reward)
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
