"""A few rollouts of each step as text, for ``samples.jsonl``, ``rlhf show`` and observers."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..contracts.executor import Renderer
from ..contracts.trajectory import TrajectoryColumns


def sample_texts(batch: TrajectoryColumns, count: int, renderer: Renderer) -> list[dict[str, Any]]:
    """Return up to ``count`` samples, spread evenly over the batch, as JSON values."""
    rows = np.unique(np.linspace(0, len(batch) - 1, min(count, len(batch))).round().astype(int))
    total = batch.total_reward
    texts = []
    for row in rows.tolist():
        tokens = batch.tokens_of(row)
        start = batch.token_offsets[row]
        first_action = int(np.argmax(batch.action_mask[start : start + len(tokens)]))
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
            }
        )
    return texts
