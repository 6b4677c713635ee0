"""Evaluation metrics: from all episodes of a held-out set to a few numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from ...lazy import NDArray, np

FALLING = ("loss", "nll", "perplexity", "teacher_nll")
"""Last parts of the names of metrics of which less is better; of all others more is."""


def is_falling(metric: str) -> bool:
    """Return whether less of a metric is better, by the last part of its name: ``eval/nll``."""
    return metric.rpartition("/")[2] in FALLING


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalEpisodes:
    """The scored episodes of one held-out set at one temperature, those of a prompt next to each other. Axis ``E``:
    episodes."""

    set_name: str
    """Name of the held-out set, as in metrics."""
    temperature: float
    """Sampling temperature; 0 is greedy."""
    prompt: NDArray[np.int64]
    """(E,) index of the episode's prompt among those of which something was scored, 0 to P - 1, rising."""
    reward: NDArray[np.float64]
    """(E,) total reward."""
    passed: NDArray[np.bool_]
    """(E,) True where the reward is at least ``eval.pass_threshold``."""
    num_actions: NDArray[np.int64]
    """(E,) tokens that the policy wrote."""
    responses: tuple[str, ...]
    """(E,) text that the policy wrote, of all turns; what an environment said is left out."""


class EvalMetric(Protocol):
    """A number, or several, of an evaluation, beside reward and pass@k."""

    def __call__(self, episodes: EvalEpisodes) -> Mapping[str, float]:
        """Return finite numbers by name, which are recorded as ``eval/<set>/T<temperature>/<name>``.

        A function of these episodes alone, whatever their order. A number that these episodes do not define is left
        out.
        """
