"""Metrics of plugins on the episodes of an evaluation: the same ones, of the same numbers, as within ``rlhf train``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from rlhf_core.contracts import EvalEpisodes
from rlhf_trainer.inference import NamedMetric, measured

from .records import EpisodeRecord
from .remote.texts import content_of
from .summary import SetSummary

Decode = Callable[[list[int]], str]


def with_measures(
    summaries: Sequence[SetSummary],
    episodes: Iterable[EpisodeRecord],
    metrics: Sequence[NamedMetric],
    decode: Decode,
    *,
    threshold: float,
) -> list[SetSummary]:
    """Return the results of each set at each temperature with the numbers of the metrics. Episodes without a reward are
    left out.

    Raises:
        PluginError: a metric raised, or returned what is no finite number, or a name that is taken.
    """
    scored: dict[tuple[str, float], list[EpisodeRecord]] = {}
    for episode in episodes:
        if episode.reward is not None:
            scored.setdefault((episode.set, episode.temperature), []).append(episode)
    return [
        replace(
            summary,
            measured=measured(
                metrics,
                episodes_of(scored[summary.set, summary.temperature], decode, threshold=threshold),
                _names(summary),
            ),
        )
        if (summary.set, summary.temperature) in scored
        else summary
        for summary in summaries
    ]


def episodes_of(
    records: Sequence[EpisodeRecord], decode: Decode, *, threshold: float
) -> EvalEpisodes:
    """Return scored episodes of one set at one temperature as metrics get them."""
    places: dict[str, int] = {}
    reward = np.array([record.reward for record in records], np.float32)
    return EvalEpisodes(
        set_name=records[0].set,
        temperature=records[0].temperature,
        prompt=np.array(
            [places.setdefault(record.uid.split(".")[1], len(places)) for record in records],
            np.int64,
        ),
        reward=reward.astype(np.float64),
        passed=reward >= np.float32(threshold),
        num_actions=np.array([_num_actions(record) for record in records], np.int64),
        responses=tuple(_written(record, decode) for record in records),
    )


def _num_actions(record: EpisodeRecord) -> int:
    if record.segments is None:
        return record.tokens_out
    return sum(end - start for segment in record.segments for start, end in segment.turns)


def _written(record: EpisodeRecord, decode: Decode) -> str:
    """Return what the policy wrote, without what an environment said."""
    if record.segments is None:
        answers = [m for m in record.messages or () if m.get("role") == "assistant"]
        # The prompt may have answers of others; its own are the last ones.
        own = answers[len(answers) - record.turns :]
        return "".join(map(content_of, own))
    return "".join(
        decode([token for start, end in segment.turns for token in segment.token_ids[start:end]])
        for segment in record.segments
    )


def _names(summary: SetSummary) -> Mapping[str, float]:
    """Return the names that an evaluation gives itself, with any value."""
    own = ["reward", "response_length", "truncated", *summary.metrics]
    own += [f"pass@{k}" for k in summary.pass_at] + [f"reward/{name}" for name in summary.rewards]
    return dict.fromkeys(own, 0.0)
