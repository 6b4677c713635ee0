"""Patterns of a gap that are told without a cause: where it is, and how likely the recorded tokens are."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rlhf_core.lazy import np

from .case import Case
from .forward import Reading, logprobs_of
from .sequences import Recorded

_BELOW_UNIFORM = 1.0
"""Nats per action by which tokens are less likely than at random: text of a model is more likely under any relative."""


def pattern_of(side: str, reading: Reading, sequences: Sequence[Recorded], allowed: float) -> str:
    """Return in words which actions are off, from which depth, in which turns, and whether it grows with depth."""
    depths: list[int] = []
    turns: set[int] = set()
    early: list[float] = []
    late: list[float] = []
    count = 0
    for sequence in sequences:
        mask = sequence.action_mask & np.isfinite(sequence.logprobs[side])
        places = np.flatnonzero(mask)
        gaps = np.abs(logprobs_of(reading, sequence) - sequence.logprobs[side])[mask]
        begins = sequence.action_mask & ~np.concatenate([[False], sequence.action_mask[:-1]])
        off = places[gaps > allowed]
        depths += off.tolist()
        turns |= set(np.cumsum(begins)[off].tolist())
        half, count = (len(gaps) + 1) // 2, count + len(gaps)
        early += gaps[:half].tolist()
        late += gaps[half:].tolist()
    return (
        f"{len(depths)} of {count} actions, from depth {min(depths, default=0)} on, in turns "
        f"{', '.join(map(str, sorted(turns)))}; mean gap {np.mean(early):.3g} in first halves, "
        f"{np.mean(late or early):.3g} in last ones"
    )


def unlikely_of(side: str, case: Case) -> str:
    """Return in words that recorded tokens are less likely than uniform ones; empty where they are not."""
    plain = np.concatenate([logprobs_of(case.plain, each) for each in case.sequences])
    recorded = np.concatenate([each.logprobs[side] for each in case.sequences])
    uniform = -math.log(int(case.plain.model.config.get_text_config().vocab_size))
    mean = float(np.nanmean(plain))
    if mean > uniform - _BELOW_UNIFORM or float(np.nanmean(recorded)) < mean + _BELOW_UNIFORM:
        return ""
    return (
        f"the recorded ids have {mean:.3g} nats under the model, less than uniform ones ({uniform:.3g}): ids of "
        "another tokenizer, or weights of another model"
    )
