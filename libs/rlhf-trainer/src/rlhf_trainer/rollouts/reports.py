"""Records of a rollout batch: its metrics (rewards, lengths, staleness, and what its samples report), and a
few of its samples as text, for ``samples.jsonl``, ``rlhf show`` and observers."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlhf_core.batch.metric import Metric, Metrics
from rlhf_core.batch.sample_tokens import Learned, learned_of, tokens_entry
from rlhf_core.batch.token_columns import offsets_of
from rlhf_core.batch.trajectory_columns import TrajectoryColumns
from rlhf_core.contracts.executor import Renderer
from rlhf_core.errors import RolloutError
from rlhf_core.media.videos import place_in_video
from rlhf_core.storage.run_folder import MEDIA as MEDIA_FOLDER

END = "end/"
"""Prefix of the metrics by which executors say why an episode ended: 1 for the reason, 0 for the others."""

UNSHAPED = "unshaped_reward"
"""Name of the metric that holds a sample's total reward before reward shapers changed it."""

POLICY, ENVIRONMENT = "policy", "environment"
"""Who wrote a part of a response."""


def batch_metrics(batch: TrajectoryColumns) -> Metrics:
    """Return means over samples, and totals. A metric that only some samples report is averaged over those.

    A sample is an episode: length = sum over its rows, truncated = any of them, reward and metrics = mean over them.
    """
    episode = batch.episode
    rewards = per_episode(batch.total_reward, episode)
    lengths = np.bincount(episode, weights=batch.num_actions)
    truncated = np.bincount(episode, weights=batch.truncated) > 0
    count = len(lengths)
    metrics = {
        "reward/mean": Metric(float(rewards.sum()), count),
        "reward/std": Metric(float(rewards.std())),
        "response/length_mean": Metric(float(lengths.sum()), count),
        "response/length_max": Metric(float(lengths.max()), reduction="max"),
        "response/truncated": Metric(float(truncated.sum()), count),
        "rollout/tokens": Metric(float(batch.num_tokens.sum()), reduction="sum"),
        "rollout/samples": Metric(float(count), reduction="sum"),
    }
    if count < len(batch):
        metrics["rollout/rows"] = Metric(float(len(batch)), reduction="sum")
    return metrics | named_metrics(batch)


def named_metrics(batch: TrajectoryColumns) -> Metrics:
    """Return ``reward/NAME`` for each reward, and ``rollout/NAME`` for each metric that rewards, the environment and
    the executor report, as means over the episodes that have it."""
    metrics: Metrics = {}
    named = {f"reward/{name}": column for name, column in batch.rewards.items()}
    named |= {f"rollout/{name}": column for name, column in batch.metrics.items()}
    for name, column in named.items():
        present = ~np.isnan(column)
        values = per_episode(
            column[present], np.unique(batch.episode[present], return_inverse=True)[1]
        )
        metrics[name] = Metric(float(values.sum()), len(values))
    return metrics


def per_episode(values: NDArray[np.float32], episode: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return (E,) the mean of the values of each episode's rows, in float64.

    Args:
        values: (B,)
        episode: (B,) dense index 0..E-1.
    """
    rows = np.bincount(episode)
    # Weights of a single row are not divided, so that its number stays as it is.
    sums = np.bincount(episode, weights=values.astype(np.float64))
    return np.asarray(np.where(rows > 1, sums / np.maximum(rows, 1), sums), dtype=np.float64)


def staleness_metrics(batch: TrajectoryColumns, version: int, max_staleness: int) -> Metrics:
    """Return mean and maximum over action tokens, and the share of tokens at each staleness up to the bound.

    Raises:
        RolloutError: a token is older than the bound allows, because the engine served outdated weights.
    """
    oldest = version - int(batch.oldest_version.min())
    if oldest > max_staleness:
        row = int(batch.oldest_version.argmin())
        uid = ".".join(map(str, batch.uid[row].tolist()))
        raise RolloutError(
            f"sample {uid} has a token of weights {oldest} versions old, expected at most {max_staleness} "
            "(--rollout.max_staleness): the engine served older weights than the last ones that it was given. "
            "Continue from the newest checkpoint with --resume auto; if it happens again, the engine loses updates",
            code="rollout/stale-weights",
        )
    if not max_staleness:
        return {}
    counts, widest = batch.version_counts, batch.version_counts.shape[1]
    staleness = version - batch.oldest_version[:, None] - np.arange(widest)  # (B, W)
    count = float(counts.sum())
    metrics: Metrics = {
        "rollout/staleness_mean": Metric(float((staleness * counts).sum()), count),
        "rollout/staleness_max": Metric(float(oldest), reduction="max"),
    }
    for age in range(max_staleness + 1):
        metrics[f"rollout/staleness_{age}"] = Metric(float(counts[staleness == age].sum()), count)
    return metrics


def sample_texts(
    batch: TrajectoryColumns, count: int, renderer: Renderer, learned: Learned | None = None
) -> list[dict[str, Any]]:
    """Return ``count`` samples, or all if there are fewer, spread evenly over the batch, as JSON values; beside those,
    where ``learned`` has columns of the batch, ``tokens``."""
    rows = np.unique(np.linspace(0, len(batch) - 1, min(count, len(batch))).round().astype(int))
    learned = None if learned is None else learned_of(learned, batch, rows)
    batch = batch.select(rows)
    columns, total = batch.tokens.read(), batch.total_reward
    steps = offsets_of(batch.num_steps)
    texts = []
    for row in range(len(batch)):
        span = slice(columns.token_offsets[row], columns.token_offsets[row + 1])
        tokens, is_action = columns.token_ids[span], columns.action_mask[span]
        first_action = int(np.argmax(is_action))
        texts.append(
            {
                "uid": ".".join(map(str, batch.uid[row].tolist())),
                "prompt": renderer.decode(tokens[:first_action].tolist()),
                "response": renderer.decode(tokens[first_action:].tolist()),
                "reward": float(total[row]),
                "rewards": {
                    name: float(column[row])
                    for name, column in batch.rewards.items()
                    if not np.isnan(column[row])
                },
                "truncated": bool(batch.truncated[row]),
                **_parts(tokens[first_action:], is_action[first_action:], renderer),
                **_unshaped(batch, row),
                **images_entry(batch, row),
                **_end(batch, row),
                **_step_rewards(batch, slice(steps[row], steps[row + 1])),
                **({} if learned is None else tokens_entry(learned, batch, row, renderer)),
            }
        )
    return texts


def _parts(
    token_ids: NDArray[np.int32], is_action: NDArray[np.bool_], renderer: Renderer
) -> dict[str, Any]:
    """Return who wrote which part of a response, as pairs of speaker and text; nothing if the policy wrote it all."""
    if is_action.all():
        return {}
    starts = np.flatnonzero(np.diff(is_action)) + 1
    spans = zip([0, *starts], [*starts, len(token_ids)], strict=True)
    return {
        "parts": [
            [
                POLICY if is_action[start] else ENVIRONMENT,
                renderer.decode(token_ids[start:end].tolist()),
            ]
            for start, end in spans
        ]
    }


def _unshaped(batch: TrajectoryColumns, row: int) -> dict[str, float]:
    """Return a sample's reward before shaping; nothing if no shaper changed it."""
    if UNSHAPED not in batch.metrics:
        return {}
    unshaped = float(batch.metrics[UNSHAPED][row])
    return {} if unshaped == float(batch.total_reward[row]) else {"unshaped": unshaped}


def images_entry(batch: TrajectoryColumns, row: int) -> dict[str, Any]:
    """Return where a row's images are: their files in the run folder, and their tokens; nothing if it has none."""
    images = [
        {
            "file": f"{MEDIA_FOLDER}/{span.image.file_name}",
            "width": span.image.width,
            "height": span.image.height,
            "tokens": [span.start, span.end],
            **place_in_video(span.image),
        }
        for span in batch.media_of(row)
    ]
    return {"images": images} if images else {}


def _end(batch: TrajectoryColumns, row: int) -> dict[str, str]:
    """Return why a sample's episode ended (``contracts.EpisodeEnd``); nothing if its executor does not say."""
    ends = [
        name for name in batch.metrics if name.startswith(END) and batch.metrics[name][row] == 1
    ]
    return {"end": ends[0].removeprefix(END)} if ends else {}


def _step_rewards(batch: TrajectoryColumns, steps: slice) -> dict[str, Any]:
    """Return a sample's step rewards as pairs of an action's index and a number; nothing if it has none."""
    pairs = zip(batch.step_actions[steps].tolist(), batch.step_rewards[steps].tolist(), strict=True)
    found = [list(pair) for pair in pairs]
    return {"step_rewards": found} if found else {}
