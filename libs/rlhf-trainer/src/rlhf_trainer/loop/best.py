"""The best evaluation so far. Values are compared only with values of the same metric, mode and data: a run that goes
on with another one has no best yet, and keeps the checkpoint of the earlier one."""

from __future__ import annotations

import hashlib
import json
import logging
import math
from collections.abc import Mapping
from typing import Any

from rlhf_config.common import CheckpointConfig
from rlhf_config.resolved import ResolvedOptions

from .state import Best, RunState

log = logging.getLogger(__name__)

MEASURES = ("eval", "env", "reward")
"""Sections that decide what an evaluation measures."""
SCHEDULE = ("every", "at_start")
"""Options of ``eval`` that decide when alone."""


def evaluated_on(resolved: ResolvedOptions[Any], inputs: Mapping[str, str]) -> str:
    """Return a digest of what a run's evaluations measure: their options, environments and rewards, and their files.

    Args:
        inputs: the result of ``input_digests``.
    """
    sections = {name: resolved.tree.get(name, {}) for name in MEASURES}
    sections["eval"] = {
        key: value for key, value in sections["eval"].items() if key not in SCHEDULE
    }
    files = {name: digest for name, digest in inputs.items() if name.startswith("eval.")}
    text = json.dumps([sections, files], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def note_best(
    state: RunState,
    values: Mapping[str, float],
    options: CheckpointConfig,
    data: str,
    headline: str | None,
) -> bool:
    """Return whether an evaluation is the best so far by ``checkpoint.best_metric``, and keep it in the state if so.

    Args:
        data: the result of ``evaluated_on``.
        headline: the metric that ``auto`` means; None: there is none, and no best one.
    """
    best = options.best(headline)
    if best is None or state.step == 0:
        return False
    name, mode = best
    value = values.get(name, math.nan)
    if math.isnan(value):
        # Its set lost all samples to a reward's errors, say; that it has the metric was checked before.
        log.warning(
            "%s was not evaluated at step %s, which is therefore not the best one (--checkpoint.best_metric)",
            name,
            state.step,
        )
        return False
    same = [b for b in state.bests if (b.metric, b.mode, b.data) == (name, mode, data)]
    others = [b for b in state.bests if b not in same]
    sign = 1 if mode == "max" else -1
    if any(sign * value <= sign * before.value for before in same):
        return False
    # A new list: checkpoints of earlier steps hold the old one.
    state.bests = [*others, Best(metric=name, mode=mode, data=data, step=state.step, value=value)]
    return True
