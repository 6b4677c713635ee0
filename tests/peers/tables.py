"""All pairs and differences, and as the tables of docs/algorithms/compared_with_peers.md.

``python -m tests.peers.tables`` prints the two tables.
"""

from __future__ import annotations

from . import (  # noqa: F401  (each registers its pairs or differences)
    core_pairs,
    correction_pairs,
    distillation_pairs,
    estimator_differences,
    estimator_pairs,
    head_pairs,
    loss_differences,
    off_policy_loss_pairs,
    policy_loss_pairs,
    preference_differences,
    preference_pairs,
    ranking_pairs,
    shaping_pairs,
    verl_estimator_pairs,
)
from .differences import DIFFERENCES
from .pairs import PAIRS


def functions() -> set[tuple[str, str, str]]:
    """Return what is compared: peer, its function, ours; however many cases there are of each."""
    return {(pair.peer, pair.function, pair.ours) for pair in PAIRS}


def pair_rows() -> list[str]:
    """Return one row per function of a peer and ours, with all cases of it."""
    rows: dict[tuple[str, str, str], list[str]] = {}
    compared: dict[tuple[str, str, str], str] = {}
    for pair in PAIRS:
        key = (pair.ours, pair.peer, pair.function)
        rows.setdefault(key, []).append(pair.case)
        gradient = "value, gradient" if pair.gradient else "value"
        compared[key] = gradient + (" (float32)" if pair.why_tolerance else "")
    return [
        f"| `{ours}` | {peer} | `{function}` | {'; '.join(filter(None, cases))} | {compared[ours, peer, function]} |"
        for (ours, peer, function), cases in sorted(rows.items())
    ]


def difference_rows() -> list[str]:
    """Return one row per intended difference."""
    return [
        f"| `{entry.ours}` | {entry.peer} | `{entry.function}` | {entry.what} | {entry.why} |"
        for entry in sorted(DIFFERENCES, key=lambda entry: (entry.ours, entry.peer, entry.function))
    ]


if __name__ == "__main__":
    print(*pair_rows(), "", *difference_rows(), sep="\n")
