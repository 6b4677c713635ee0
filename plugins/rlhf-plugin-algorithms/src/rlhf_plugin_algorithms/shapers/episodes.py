"""Numbers of whole episodes, at each of their rows: an episode of several rows is rewarded and measured as one."""

from __future__ import annotations

from rlhf_core.contracts import Metric, TrajectoryColumns
from rlhf_core.lazy import Bool, Float, Int, np, torch
from rlhf_core.math import group_mean


def episode_lengths(batch: TrajectoryColumns) -> Int[np.ndarray, " b"]:
    """Return, at each row, the action tokens of its whole episode. Environment text does not count."""
    episode = batch.episode
    return np.bincount(episode, weights=batch.num_actions)[episode].astype(np.int64)


def longest_turns(batch: TrajectoryColumns) -> Int[np.ndarray, " b"]:
    """Return, at each row, the action tokens of the longest turn of its episode."""
    episode = batch.episode
    longest = np.zeros(len(batch), dtype=np.int64)
    np.maximum.at(longest, np.repeat(episode, batch.num_turns), batch.turn_actions)
    return longest[episode]


def episode_means(
    values: Float[np.ndarray, " b"], episode: Int[np.ndarray, " b"]
) -> Float[np.ndarray, " b"]:
    """Return, at each row, the mean of ``values`` over the rows of its episode, in float64."""
    exact = torch.tensor(values, dtype=torch.float64)
    return group_mean(exact, torch.tensor(episode)).numpy()


def over_samples(
    values: Float[np.ndarray, " b"] | Bool[np.ndarray, " b"], episode: Int[np.ndarray, " b"]
) -> Metric:
    """Return the mean of ``values`` over samples as a metric: an episode counts once, with the mean of its rows."""
    rows = np.bincount(episode)  # (E,)
    return Metric(float((values / rows[episode]).sum()), len(rows))
