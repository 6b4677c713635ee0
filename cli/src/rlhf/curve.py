"""The picture of one metric over the steps of a run, as SVG."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence

WIDTH, HEIGHT = 480, 120
"""Size of the curve, in pixels."""
REWARD = "reward/mean"
_LOSS = "loss/"


def curve_of(rows: Sequence[Mapping[str, float]], name: str | None = None) -> str:
    """Return an SVG picture of one metric over the steps; empty with fewer than two finite values.

    Args:
        name: the metric; None: the reward, or the first loss of a run that has no rewards.
    """
    name = name or _main_metric(rows)
    points = [
        (row["step"], row[name]) for row in rows if name in row and abs(row[name]) < float("inf")
    ]
    if len(points) < 2:
        return ""
    first, last = points[0][0], points[-1][0]
    low, high = min(value for _, value in points), max(value for _, value in points)
    place = " ".join(
        f"{WIDTH * (step - first) / max(last - first, 1):.1f},"
        f"{HEIGHT * (1 - (value - low) / ((high - low) or 1.0)):.1f}"
        for step, value in points
    )
    return (
        f'<svg width="{WIDTH}" height="{HEIGHT + 24}" viewBox="-4 -4 {WIDTH + 8} {HEIGHT + 28}">'
        f'<polyline points="{place}" fill="none" stroke="#1f77b4" stroke-width="1.5"/>'
        f'<text x="0" y="{HEIGHT + 18}" font-size="12">{html.escape(name)}: {low:.4g} to {high:.4g}, '
        f"steps {first} to {last}</text></svg>"
    )


def _main_metric(rows: Sequence[Mapping[str, float]]) -> str:
    if any(REWARD in row for row in rows):
        return REWARD
    return next((name for row in rows for name in row if name.startswith(_LOSS)), REWARD)
